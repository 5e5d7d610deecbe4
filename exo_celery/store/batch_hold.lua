-- KEYS: hold, again.  ARGV: who, seconds.
-- Only one moves a batch on at a time; who comes meanwhile leaves word.  1 held, 0 somebody else holds it.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then
  redis.call('DEL', KEYS[2])
  return 1
end
redis.call('SET', KEYS[2], '1', 'EX', 60)
return 0
