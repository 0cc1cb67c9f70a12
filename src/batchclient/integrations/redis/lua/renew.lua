-- Renews the leases of a consumer's messages; returns the entries that are not its own any more.
-- KEYS: stream   ARGV: group, consumer, entries
local own, lost = {}, {}
for place = 3, #ARGV do
  local entry = ARGV[place]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, ARGV[2]) == 1 then
    own[#own + 1] = entry
  else
    lost[#lost + 1] = entry
  end
end
if #own > 0 then
  own[#own + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(own))
end
return lost
