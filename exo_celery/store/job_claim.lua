-- KEYS: job, tokens.  ARGV: ns, id, lease seconds, instance, ring as JSON, the claimer's token.
-- queued → running, attempt + 1.  Answers {attempt}, or {0, state} when there is nothing to run.
-- Sent twice with the same token it claims once.
local ns, id = ARGV[1], ARGV[2]
local state, attempt, model, priority, token, deadline =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'model', 'priority', 'claim', 'deadline_at'))
if state == 'running' and token == ARGV[6] then return {tonumber(attempt)} end
if state ~= 'queued' then return {0, state or 'gone'} end
deadline = tonumber(deadline or '0')
if deadline > 0 and deadline <= now then return {0, 'too late'} end
attempt = tonumber(attempt) + 1
local lease_until = string.format('%.6f', now + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', attempt, 'lease_until', lease_until,
  'claim', ARGV[6], 'instance', ARGV[4], 'ring', ARGV[5],
  'started_at', now_text, 'first_token_at', 0, 'note', '')
redis.call('ZREM', ns .. ':jobs:queued', id)
redis.call('ZREM', ns .. ':queued:' .. priority .. ':' .. model, id)
redis.call('ZADD', ns .. ':jobs:running', lease_until, id)
redis.call('XADD', KEYS[2], attempt .. '-*', 'kind', 'attempt')
return {attempt}
