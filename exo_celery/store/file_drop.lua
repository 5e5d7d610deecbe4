-- KEYS: file, chunks, bytes of all files, files, expiring.  ARGV: id.
-- Gives the file's bytes back.  1 dropped, 0 there was none.
local stored = redis.call('HGET', KEYS[1], 'stored_bytes')
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2])
if stored then redis.call('DECRBY', KEYS[3], stored) end
return stored and 1 or 0
