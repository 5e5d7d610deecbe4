-- KEYS: job, tokens.  ARGV: ns, id, seconds until its deadline ('' = none).
-- failed, cancelled → queued, with all its attempts before it again.  {1, published at}, or {0, state}.
-- Attempts go on counting, so that no late write of an old one is ever taken for a new one's.
local ns, id = ARGV[1], ARGV[2]
local state, attempt, model, priority, owner =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'model', 'priority', 'owner'))
if state ~= 'failed' and state ~= 'cancelled' then return {0, state or 'gone'} end
redis.call('HSET', KEYS[1], 'state', 'queued', 'attempts_before', attempt, 'published_at', now_text,
  'started_at', 0, 'first_token_at', 0, 'finished_at', 0, 'lease_until', 0, 'deadline_at', 0,
  'text', '', 'tool_calls', '', 'logprobs', '', 'finish_reason', '', 'usage', '', 'error', '', 'note', '',
  'then_sent_at', 0, 'webhook_sent_at', 0, 'webhook_tries', 0, 'webhook_error', '')
redis.call('PERSIST', KEYS[1])
redis.call('DEL', KEYS[2])
redis.call('ZREM', ns .. ':expiring', id .. ' ' .. (owner or ''))
redis.call('ZREM', ns .. ':outbox:then', id)
redis.call('ZREM', ns .. ':outbox:webhook', id)
redis.call('ZREM', ns .. ':jobs:' .. state, id)
redis.call('ZADD', ns .. ':jobs:queued', now_text, id)
redis.call('ZADD', ns .. ':queued:' .. priority .. ':' .. model, now_text, id)
if ARGV[3] ~= '' then
  local deadline = string.format('%.6f', now + tonumber(ARGV[3]))
  redis.call('HSET', KEYS[1], 'deadline_at', deadline)
  redis.call('ZADD', ns .. ':deadlines', deadline, id)
end
return {1, now_text}
