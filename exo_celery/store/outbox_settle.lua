-- KEYS: an outbox, job.  ARGV: id, until when it was the teller's, seconds to the next try ('' = done), field, value, …
-- Refused (0) when somebody else has it by now, or the job was retried meanwhile and ended again.
local there = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not there or tonumber(there) ~= tonumber(ARGV[2]) then return 0 end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + tonumber(ARGV[3])), ARGV[1])
end
if #ARGV > 3 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], unpack(ARGV, 4)) end
return 1
