-- Lets the leases of a consumer's messages run out, for any worker to take them at once.
-- Returns how many.
-- KEYS: stream   ARGV: group, consumer, idle ms, then entries, each with its number of deliveries
local given = 0
for place = 4, #ARGV, 2 do
  local entry = ARGV[place]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, ARGV[2]) == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry, 'IDLE', ARGV[3], 'RETRYCOUNT', ARGV[place + 1], 'JUSTID')
    given = given + 1
  end
end
return given
