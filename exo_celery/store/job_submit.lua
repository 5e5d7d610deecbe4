-- KEYS: job.  ARGV: ns, id, model, priority, then field, value, …
-- Idempotent by id.  Answers {1 new | 0 known, published at}.
local ns, id = ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, redis.call('HGET', KEYS[1], 'published_at')}
end
redis.call('HSET', KEYS[1], 'created_at', now_text, 'published_at', now_text, unpack(ARGV, 5))
redis.call('ZADD', ns .. ':jobs:all', now_text, id)
redis.call('ZADD', ns .. ':jobs:queued', now_text, id)
redis.call('ZADD', ns .. ':queued:' .. ARGV[4] .. ':' .. ARGV[3], now_text, id)
return {1, now_text}
