-- Redis time in seconds, as a number and as the text that is stored.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local now_text = string.format('%.6f', now)
