-- KEYS: instance.  ARGV: version the caller read, when it was last used as the caller read it, why it goes.
-- ready → draining, unless somebody wrote or used it in between: 1 done, 0 not.
local version, status, used_at = unpack(redis.call('HMGET', KEYS[1], 'version', 'status', 'used_at'))
if status ~= 'ready' or version ~= ARGV[1] or (used_at or '0.000000') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'status', 'draining', 'version', version + 1, 'updated_at', now_text, 'note', ARGV[3])
return 1
