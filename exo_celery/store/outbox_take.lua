-- KEYS: an outbox.  ARGV: seconds for which the taker has it to itself.
-- {the id that has been due for longest, until when it is the taker's}, or {}.  Not settled by then, it is due again.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_text, 'LIMIT', 0, 1)[1]
if not due then return {} end
local held = string.format('%.6f', now + tonumber(ARGV[1]))
redis.call('ZADD', KEYS[1], held, due)
return {due, held}
