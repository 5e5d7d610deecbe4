-- KEYS: batch, active, flights.
-- ARGV: id, statuses it may come from (',a,b,'), '1' if no line may be worked on any more, field for the time,
--       seconds to keep it from now on ('' = it has not ended), then field, value, …
-- The one way from status to status.  1 done, 0 refused.
local status = redis.call('HGET', KEYS[1], 'status')
if not status or not string.find(ARGV[2], ',' .. status .. ',', 1, true) then return 0 end
if ARGV[3] == '1' and redis.call('HLEN', KEYS[3]) > 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[4], now_text, unpack(ARGV, 6))
if ARGV[5] ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[5])
end
return 1
