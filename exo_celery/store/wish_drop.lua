-- KEYS: a node's wishes.  ARGV: model, the wish as it was read.
-- A wish that was replaced meanwhile is somebody else's and stays: 1 dropped, 0 not.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
