-- KEYS: job, tokens.  ARGV: ns, id, lease seconds, instance, ring as JSON, the claimer's token.
-- queued → running, attempt + 1.  Answers {attempt}, or {0, why} when there is nothing to run: an instance that is
-- to go gets no job any more.
-- Sent twice with the same token it claims once.
local ns, id = ARGV[1], ARGV[2]
local state, attempt, model, priority, token, deadline =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'model', 'priority', 'claim', 'deadline_at'))
if state == 'running' and token == ARGV[6] then return {tonumber(attempt)} end
if state ~= 'queued' then return {0, state or 'gone'} end
local where = ns .. ':instance:' .. ARGV[4]
local there = redis.call('HGET', where, 'status')
if there == 'draining' or there == 'gone' then return {0, 'the instance is ' .. there} end
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
if there then redis.call('HSET', where, 'used_at', now_text) end
redis.call('XADD', KEYS[2], attempt .. '-*', 'kind', 'attempt')
return {attempt}
