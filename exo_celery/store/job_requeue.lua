-- KEYS: job.  ARGV: ns, id, attempt ('' = whichever, if its lease has lapsed), reason, cap of attempts,
--       '1' when the worker was told to end: that attempt is not counted, and there is no fault to tell.
-- running → queued.  {1, published at}; {0} nothing to do; {2} the cap is reached, the caller fails the job.
local ns, id = ARGV[1], ARGV[2]
local state, attempt, model, priority, lease_until, reasons, before =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'model', 'priority', 'lease_until', 'reasons',
    'attempts_before'))
if state ~= 'running' then
  redis.call('ZREM', ns .. ':jobs:running', id)
  return {0}
end
if ARGV[3] == '' then
  if tonumber(lease_until) > now then return {0} end
elseif attempt ~= ARGV[3] then
  return {0}
end
if ARGV[6] == '1' then
  redis.call('HINCRBY', KEYS[1], 'attempts_before', 1)
else
  local list = cjson.decode(reasons ~= '' and reasons or '[]')
  list[#list + 1] = 'attempt ' .. attempt .. ': ' .. ARGV[4]
  redis.call('HSET', KEYS[1], 'reasons', cjson.encode(list))
  if tonumber(attempt) - tonumber(before or '0') >= tonumber(ARGV[5]) then return {2} end
end
redis.call('HSET', KEYS[1], 'state', 'queued', 'published_at', now_text, 'lease_until', 0)
redis.call('ZREM', ns .. ':jobs:running', id)
redis.call('ZADD', ns .. ':jobs:queued', now_text, id)
redis.call('ZADD', ns .. ':queued:' .. priority .. ':' .. model, now_text, id)
return {1, now_text}
