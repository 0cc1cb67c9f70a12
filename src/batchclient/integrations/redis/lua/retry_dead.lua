-- Puts dead letters back into the stream, as they were enqueued; returns how many.
-- KEYS: dead letters, stream   ARGV: count of own fields, own fields, entries
local added = tonumber(ARGV[1])
local own = {}
for place = 2, 1 + added do own[ARGV[place]] = true end
local moved = 0
for place = 2 + added, #ARGV do
  local letter = redis.call('XRANGE', KEYS[1], ARGV[place], ARGV[place])[1]
  if letter then
    local fields = {}
    for at = 1, #letter[2], 2 do
      if not own[letter[2][at]] then
        fields[#fields + 1] = letter[2][at]
        fields[#fields + 1] = letter[2][at + 1]
      end
    end
    if #fields > 0 and #fields < 7900 then  -- more is no message, and unpack would fail
      redis.call('XADD', KEYS[2], '*', unpack(fields))
      redis.call('XDEL', KEYS[1], ARGV[place])
      moved = moved + 1
    end
  end
end
return moved
