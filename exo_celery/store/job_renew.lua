-- KEYS: job.  ARGV: ns, id, attempt, lease seconds.  1 renewed, 0 no longer this attempt's job.
local state, attempt = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt'))
if state ~= 'running' or attempt ~= ARGV[3] then return 0 end
local lease_until = string.format('%.6f', now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'lease_until', lease_until)
redis.call('ZADD', ARGV[1] .. ':jobs:running', 'XX', lease_until, ARGV[2])
return 1
