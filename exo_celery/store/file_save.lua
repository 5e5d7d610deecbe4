-- KEYS: file, files, expiring.  ARGV: id, seconds to keep, then field, value, …
-- The file is whole: from now on it can be read.  Saved twice it is saved once.
if redis.call('HEXISTS', KEYS[1], 'created_at') == 1 then return 0 end
local expires_at = string.format('%.6f', now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'created_at', now_text, 'expires_at', expires_at, unpack(ARGV, 3))
redis.call('ZADD', KEYS[2], now_text, ARGV[1])
redis.call('ZADD', KEYS[3], expires_at, ARGV[1])
return 1
