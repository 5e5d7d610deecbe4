-- KEYS: instance, instances, placements.
-- ARGV: id, version the caller read, count of placements the caller decided on ('' = promises no memory),
--       seconds to keep ('' = for ever), then field, value, …
-- Compare-and-set: answers {1, new version}, {0, version there} or {-1, count of placements there}.
local there = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if there ~= tonumber(ARGV[2]) then return {0, there} end
if ARGV[3] ~= '' then
  local count = tonumber(redis.call('GET', KEYS[3]) or '0')
  if count ~= tonumber(ARGV[3]) then return {-1, count} end
  redis.call('INCR', KEYS[3])
end
local epoch = redis.call('HGET', KEYS[1], 'epoch')
redis.call('HSET', KEYS[1], 'version', there + 1, 'updated_at', now_text, unpack(ARGV, 5))
if there == 0 then redis.call('HSET', KEYS[1], 'created_at', now_text) end
-- A new epoch is a new ring: what the old one's ranks said is void, and nobody has used it.
if epoch and epoch ~= redis.call('HGET', KEYS[1], 'epoch') then
  redis.call('HDEL', KEYS[1], 'used_at')
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 5) == 'rank:' then redis.call('HDEL', KEYS[1], field) end
  end
end
if ARGV[4] == '' then
  redis.call('SADD', KEYS[2], ARGV[1])
else
  redis.call('SREM', KEYS[2], ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {1, there + 1}
