-- KEYS: placements, instances.
-- ARGV: ns, count of placements the caller decided on ('' = promises no memory), model that must have none ('' = any),
--       then per instance a JSON array: id, field, value, …
-- All or none. Answers {1, ''}, {0, id of the instance there} or {-1, count of placements there}.
local ns = ARGV[1]
local function hash(id) return ns .. ':instance:' .. id end
-- Sent twice it writes once.
if redis.call('EXISTS', hash(cjson.decode(ARGV[4])[1])) == 1 then return {1, ''} end
if ARGV[3] ~= '' then
  for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    local model, status = unpack(redis.call('HMGET', hash(id), 'model', 'status'))
    if model == ARGV[3] and status ~= 'draining' then return {0, id} end
  end
end
if ARGV[2] ~= '' then
  local count = tonumber(redis.call('GET', KEYS[1]) or '0')
  if count ~= tonumber(ARGV[2]) then return {-1, tostring(count)} end
  redis.call('INCR', KEYS[1])
end
for at = 4, #ARGV do
  local pairs_of = cjson.decode(ARGV[at])
  redis.call('HSET', hash(pairs_of[1]), 'version', 1, 'created_at', now_text, 'updated_at', now_text,
    unpack(pairs_of, 2))
  redis.call('SADD', KEYS[2], pairs_of[1])
end
return {1, ''}
