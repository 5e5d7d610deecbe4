-- KEYS: job, tokens; job, tokens; …  ARGV: attempt, number of the piece from 1 on, text, data as JSON or ''; attempt, …
-- Pieces for the streams of several jobs.  Answers for each: 1 go on, 0 stop (cancelled, or another attempt's by now).
-- Sent twice it is written once: its id is there already, and XADD's refusal is no error.
local answers = {}
for i = 1, #KEYS / 2 do
  local job, tokens = KEYS[2 * i - 1], KEYS[2 * i]
  local attempt, number, text, data = unpack(ARGV, 4 * i - 3, 4 * i)
  local state, current, first = unpack(redis.call('HMGET', job, 'state', 'attempt', 'first_token_at'))
  local goes_on = state == 'running' and current == attempt
  if goes_on then
    if first == '0' then redis.call('HSET', job, 'first_token_at', now_text) end
    local fields = {'kind', 'delta', 'text', text}
    if data ~= '' then fields[5], fields[6] = 'data', data end
    redis.pcall('XADD', tokens, attempt .. '-' .. number, unpack(fields))
  end
  answers[i] = goes_on and 1 or 0
end
return answers
