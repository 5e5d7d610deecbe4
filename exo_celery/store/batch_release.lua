-- KEYS: hold, again.  ARGV: who.
-- 1 when somebody came meanwhile: look again.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return redis.call('DEL', KEYS[2])
