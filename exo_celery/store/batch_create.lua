-- KEYS: batch, batches, active.  ARGV: id, seconds until it expires, then field, value, …
redis.call('HSET', KEYS[1], 'created_at', now_text,
  'expires_at', string.format('%.6f', now + tonumber(ARGV[2])), unpack(ARGV, 3))
redis.call('ZADD', KEYS[2], now_text, ARGV[1])
redis.call('ZADD', KEYS[3], now_text, ARGV[1])
return now_text
