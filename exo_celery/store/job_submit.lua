-- KEYS: job.  ARGV: ns, id, model, priority, owner, seconds until its deadline ('' = none), then field, value, …
-- Idempotent by id.  Answers {1 new | 0 known, published at}.
local ns, id = ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, redis.call('HGET', KEYS[1], 'published_at')}
end
redis.call('HSET', KEYS[1], 'created_at', now_text, 'published_at', now_text, unpack(ARGV, 7))
redis.call('ZADD', ns .. ':jobs:all', now_text, id)
redis.call('ZADD', ns .. ':jobs:queued', now_text, id)
redis.call('ZADD', ns .. ':queued:' .. ARGV[4] .. ':' .. ARGV[3], now_text, id)
if ARGV[5] ~= '' then
  redis.call('ZADD', ns .. ':jobs:owner:' .. ARGV[5], now_text, id)
end
if ARGV[6] ~= '' then
  local deadline = string.format('%.6f', now + tonumber(ARGV[6]))
  redis.call('HSET', KEYS[1], 'deadline_at', deadline)
  redis.call('ZADD', ns .. ':deadlines', deadline, id)
end
return {1, now_text}
