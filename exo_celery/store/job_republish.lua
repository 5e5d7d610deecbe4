-- KEYS: job.  ARGV: ns, id, published at (as the caller read it).
-- Compare-and-set on the time of publishing: {1, published at} for the one caller that may send the message again.
local ns, id = ARGV[1], ARGV[2]
local state, published, model, priority =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'published_at', 'model', 'priority'))
if state ~= 'queued' or published ~= ARGV[3] then return {0} end
redis.call('HSET', KEYS[1], 'published_at', now_text)
redis.call('ZADD', ns .. ':queued:' .. priority .. ':' .. model, now_text, id)
return {1, now_text}
