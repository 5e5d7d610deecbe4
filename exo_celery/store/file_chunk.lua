-- KEYS: file, chunks, bytes of all files, expiring.
-- ARGV: id, number, compressed chunk, quota of all files ('' = none), seconds to keep an unfinished file.
-- Answers {1 written (or there already) | 0 over the quota, bytes of all files}.
local size, used = #ARGV[3], tonumber(redis.call('GET', KEYS[3]) or '0')
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then return {1, used} end
if ARGV[4] ~= '' and used + size > tonumber(ARGV[4]) then return {0, used} end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HINCRBY', KEYS[1], 'stored_bytes', size)
if redis.call('HEXISTS', KEYS[1], 'created_at') == 0 then
  redis.call('ZADD', KEYS[4], now + tonumber(ARGV[5]), ARGV[1])
end
return {1, redis.call('INCRBY', KEYS[3], size)}
