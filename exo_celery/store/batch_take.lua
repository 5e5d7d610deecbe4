-- KEYS: batch, flights.
-- ARGV: field of the cursor, cursor as read, new cursor, line ('' = none), its flight as JSON, model, most of its lines
--       that may be in work.
-- Moves a model's cursor on and begins the line in one step: of two pumps that read the same cursor one gets it.
local status, ending, cursor = unpack(redis.call('HMGET', KEYS[1], 'status', 'ending', ARGV[1]))
if status ~= 'in_progress' or ending ~= '' or (cursor or '') ~= ARGV[2] then return 0 end
if ARGV[4] ~= '' then
  local in_work = 0
  for _, flight in ipairs(redis.call('HVALS', KEYS[2])) do
    if cjson.decode(flight).model == ARGV[6] then in_work = in_work + 1 end
  end
  if in_work >= tonumber(ARGV[7]) then return 0 end
  redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
