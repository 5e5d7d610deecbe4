-- KEYS: batch, flights, results, job, tokens.
-- ARGV: ns, line, job id, count to raise, result, prompt tokens, completion tokens, seconds to keep the job.
-- A line's one result, and the job's way out of all lists.  1 recorded, 0 it was already.
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then return 0 end
if redis.call('HSETNX', KEYS[3], ARGV[2], ARGV[5]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[4], 1)
  redis.call('HINCRBY', KEYS[1], 'prompt_tokens', ARGV[6])
  redis.call('HINCRBY', KEYS[1], 'completion_tokens', ARGV[7])
end
local ns, id = ARGV[1], ARGV[3]
local state, owner = unpack(redis.call('HMGET', KEYS[4], 'state', 'owner'))
if state then
  redis.call('ZREM', ns .. ':jobs:all', id)
  redis.call('ZREM', ns .. ':jobs:' .. state, id)
  redis.call('ZREM', ns .. ':jobs:owner:' .. (owner or ''), id)
  redis.call('ZREM', ns .. ':expiring', id .. ' ' .. (owner or ''))
  redis.call('EXPIRE', KEYS[4], ARGV[8])
  redis.call('EXPIRE', KEYS[5], ARGV[8])
end
return 1
