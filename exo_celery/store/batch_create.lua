-- KEYS: batch, batches, active.  ARGV: id, seconds until it expires, then field, value, …
-- Of a known id nothing changes.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'created_at', now_text,
  'expires_at', string.format('%.6f', now + tonumber(ARGV[2])), unpack(ARGV, 3))
redis.call('ZADD', KEYS[2], now_text, ARGV[1])
redis.call('ZADD', KEYS[3], now_text, ARGV[1])
return 1
