-- KEYS: batch, flights.  ARGV: field of the cursor, cursor as read, new cursor, line ('' = none), its flight as JSON.
-- Moves a model's cursor on and begins the line in one step: of two pumps that read the same cursor one gets it.
local status, ending, cursor = unpack(redis.call('HMGET', KEYS[1], 'status', 'ending', ARGV[1]))
if status ~= 'in_progress' or ending ~= '' or (cursor or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], ARGV[4], ARGV[5]) end
return 1
