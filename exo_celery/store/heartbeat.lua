-- KEYS: node, alive, nodes.  ARGV: node id, boot id, TTL, then field, value, …
-- The node's record and its life, renewed in one step.
redis.call('HSET', KEYS[1], 'seen_at', now_text, unpack(ARGV, 4))
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1])
return now_text
