-- KEYS: job, tokens.  ARGV: attempt, number of the delta from 1 on, text.
-- One delta of the current attempt: 1 go on, 0 stop (cancelled, or somebody else's job by now).
-- Sent twice it is written once: its id is there already, and XADD's refusal is no error.
local state, attempt, first = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'first_token_at'))
if state ~= 'running' or attempt ~= ARGV[1] then return 0 end
if first == '0' then redis.call('HSET', KEYS[1], 'first_token_at', now_text) end
redis.pcall('XADD', KEYS[2], attempt .. '-' .. ARGV[2], 'kind', 'delta', 'text', ARGV[3])
return 1
