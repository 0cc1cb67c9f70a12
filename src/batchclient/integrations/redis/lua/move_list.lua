-- Moves items of a list into a stream, each as a body; returns how many.
-- KEYS: list, stream   ARGV: most
local items = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
for _, item in ipairs(items) do redis.call('XADD', KEYS[2], '*', 'body', item) end
if #items > 0 then redis.call('LTRIM', KEYS[1], #items, -1) end
return #items
