-- KEYS: instance.  ARGV: epoch, rank, the rank's state as JSON.
-- A rank speaks for its own epoch only: 1 written, 0 refused.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'rank:' .. ARGV[2], ARGV[3])
return 1
