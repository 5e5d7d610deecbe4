-- KEYS: job, tokens.  ARGV: ns, id, attempt ('' = a cancel, from any attempt), state, end event as JSON,
--       seconds to keep the tokens, then field, value, …
-- The one way into a terminal state.  1 done (again, for the same attempt and state), 0 refused.
-- A late finish still counts while the job, queued again, has not been claimed by the next attempt.
local ns, id = ARGV[1], ARGV[2]
local state, attempt, model, priority, owner, keep, after, webhook, instance = unpack(redis.call('HMGET', KEYS[1],
  'state', 'attempt', 'model', 'priority', 'owner', 'keep_seconds', 'then', 'webhook', 'instance'))
if ARGV[3] ~= '' and attempt ~= ARGV[3] then return 0 end
if state ~= 'running' and state ~= 'queued' then
  return state == ARGV[4] and 1 or 0
end
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'finished_at', now_text, unpack(ARGV, 7))
redis.call('ZREM', ns .. ':jobs:' .. state, id)
redis.call('ZREM', ns .. ':queued:' .. priority .. ':' .. model, id)
redis.call('ZREM', ns .. ':deadlines', id)
redis.call('ZADD', ns .. ':jobs:' .. ARGV[4], now_text, id)
redis.call('XADD', KEYS[2], attempt .. '-*', 'kind', 'end', 'data', ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[6])
redis.call('EXPIRE', KEYS[1], keep)
redis.call('ZADD', ns .. ':expiring', now + keep, id .. ' ' .. (owner or ''))
local where = ns .. ':instance:' .. (instance or '')
if state == 'running' and redis.call('EXISTS', where) == 1 then redis.call('HSET', where, 'used_at', now_text) end
-- Who is to be told of the end is written in the same step, so that nobody can be forgotten.
if after and after ~= '' then redis.call('ZADD', ns .. ':outbox:then', now_text, id) end
if webhook and webhook ~= '' then redis.call('ZADD', ns .. ':outbox:webhook', now_text, id) end
return 1
