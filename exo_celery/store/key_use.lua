-- KEYS: the index of API keys.  ARGV: ns, SHA-256 of the key that came.
-- Counts one use.  {count of keys}, {count, id} for a key that may not be used, {count, id, requests left, fields …}.
local ns = ARGV[1]
local count = redis.call('HLEN', KEYS[1])
local id = redis.call('HGET', KEYS[1], ARGV[2])
if not id then return {count} end
local key = ns .. ':key:' .. id
local expires, revoked, rate = unpack(redis.call('HMGET', key, 'expires_at', 'revoked_at', 'rate_per_minute'))
if tonumber(revoked) > 0 or (tonumber(expires) > 0 and tonumber(expires) <= now) then return {count, id} end
redis.call('HSET', key, 'last_used_at', now_text)
local left = 0
if tonumber(rate) > 0 then
  local window = ns .. ':rate:' .. id .. ':' .. math.floor(now / 60)
  local used = redis.call('INCR', window)
  if used == 1 then redis.call('EXPIRE', window, 120) end
  left = tonumber(rate) - used
end
return {count, id, left, unpack(redis.call('HGETALL', key))}
