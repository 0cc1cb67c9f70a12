"""The Lua scripts: what must happen as one. Keys are declared, so scripts run in a cluster."""

from __future__ import annotations

__all__ = ["FINISH", "FOREIGN", "HAND_BACK", "LEAVE", "MOVE_LIST", "RENEW", "RETRY_DEAD"]

# Conditions with a name of their own: each is a promise that a test breaks.
_IS_FIRST = "own == 1"
_IS_NO_STREAM = "kind ~= 'stream' and kind ~= 'none'"
_IS_OWN = "#redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1, ARGV[2]) == 1"
_MOST_TEXTS = "4000"
"""Names and values that a dead letter keeps of its message: Lua hands on 8,000 values at most."""
FOREIGN = 2
"""What the key of a result holds is no worker's."""

FINISH = (
    """
-- KEYS: stream, dead letters, results stream (else the stream again), then the key of each result
-- ARGV: group, seconds of a result, then for each message: entry, 'key', text,
--       or entry, form, count, that many texts
local kept, to = 4, 3
local function place(entry) return string.format('%20s%20s', string.match(entry, '(%d+)%-(%d+)')) end
for key = 2, 3 do
  if KEYS[key] ~= KEYS[1] then
    local kind = redis.call('TYPE', KEYS[key]).ok
    if """
    + _IS_NO_STREAM
    + """ then
      return redis.error_reply('NOSTREAM ' .. KEYS[key] .. ' is a ' .. kind)
    end
  end
end
local done = {}
local at = 3
while at <= #ARGV do
  local entry, form = ARGV[at], ARGV[at + 1]
  local first, last = at + 2, at + 2
  if form ~= 'key' then first, last = at + 3, at + 2 + tonumber(ARGV[at + 2]) end
  local letter, own
  if form == 'dead' then letter = redis.call('XRANGE', KEYS[1], entry, entry)[1] end
  local kind = form == 'key' and redis.call('TYPE', KEYS[kept]).ok
  if kind and kind ~= 'string' and kind ~= 'none' then
    own = 2
  else
    own = redis.call('XACK', KEYS[1], ARGV[1], entry)
  end
  if """
    + _IS_FIRST
    + """ then
    if form == 'key' then
      -- A newer message of this id may have its result.
      local head = redis.call('GETRANGE', KEYS[kept], 0, 8191)
      local newest = string.match(head, '"message": "(%d+%-%d+)"')
      if not newest or place(newest) <= place(entry) then
        redis.call('SET', KEYS[kept], ARGV[first], unpack(ARGV[2] == '0' and {} or {'EX', ARGV[2]}))
      end
    elseif form == 'stream' then
      redis.call('XADD', KEYS[to], '*', unpack(ARGV, first, last))
    elseif form == 'dead' then
      local fields = letter and letter[2] or {}
      for place = #fields, """
    + _MOST_TEXTS
    + """ + 1, -1 do fields[place] = nil end
      for place = first, last do fields[#fields + 1] = ARGV[place] end
      redis.call('XADD', KEYS[2], '*', unpack(fields))
    end
    redis.call('XDEL', KEYS[1], entry)
  elseif own == 2 then
    -- Left as it is: the worker makes a dead letter of the message.
  elseif form == 'key' then
    if redis.call('GET', KEYS[kept]) == ARGV[first] then own = 1 end
  elseif form == 'none' then
    if #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then own = 1 end
  else
    local told = table.concat(ARGV, ' ', first, last)
    for _, each in ipairs(redis.call('XREVRANGE', KEYS[form == 'dead' and 2 or to], '+', '-', 'COUNT', 256)) do
      if table.concat(each[2], ' ', math.max(1, #each[2] - last + first)) == told then own = 1 end
    end
  end
  if form == 'key' then kept = kept + 1 end
  done[#done + 1] = own
  at = last + 1
end
return done
"""
)
"""Ends messages: each, if nobody has ended it before, gets its result or dead letter, and goes.

Returns of each 1, or 0 where somebody else had ended it, or ``FOREIGN``: that key is left alone. A
stream's key of the wrong type is refused before the first message: nothing is acknowledged without
its result. A message that has ended by just this outcome counts as ended now: the reply was lost.
Without results, whoever ended it has ended it so.
"""

RENEW = (
    """
-- KEYS: stream   ARGV: group, consumer, entries
local own, lost = {}, {}
for place = 3, #ARGV do
  local entry = ARGV[place]
  if """
    + _IS_OWN
    + """ then
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
"""
)
"""Renews the leases of a consumer's messages; returns the entries that are not its own any more."""

HAND_BACK = (
    """
-- KEYS: stream   ARGV: group, consumer, idle ms, then entries, each with its number of deliveries
local given = 0
for place = 4, #ARGV, 2 do
  local entry = ARGV[place]
  if """
    + _IS_OWN
    + """ then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry, 'IDLE', ARGV[3], 'RETRYCOUNT', ARGV[place + 1], 'JUSTID')
    given = given + 1
  end
end
return given
"""
)
"""Lets the leases of a consumer's messages run out, for any worker to take them at once."""

LEAVE = """
-- KEYS: stream   ARGV: group, consumer
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""Deletes a consumer without messages. (DELCONSUMER alone would drop the messages, too.)"""

RETRY_DEAD = """
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
"""
"""Puts dead letters back into the stream, as they were enqueued."""

MOVE_LIST = """
-- KEYS: list, stream   ARGV: most
local items = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
for _, item in ipairs(items) do redis.call('XADD', KEYS[2], '*', 'body', item) end
if #items > 0 then redis.call('LTRIM', KEYS[1], #items, -1) end
return #items
"""
"""Moves items of a list into a stream."""
