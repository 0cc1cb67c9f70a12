-- Ends messages: each, if nobody has ended it before, gets its result or dead letter, and goes.
-- Returns of each 1, or 0 where somebody else had ended it, or 2 where its result's key holds
-- something else: that key is left alone. A stream's key of the wrong type is refused before the
-- first message: nothing is acknowledged without its result. A message that has ended by just this
-- outcome counts as ended now: the reply was lost. Without results, whoever ended it has ended it so.
-- A dead letter keeps 4,000 names and values of its message: Lua hands on 8,000 at most.
-- KEYS: stream, dead letters, results stream (else the stream again), then the key of each result
-- ARGV: group, seconds of a result, then for each message: entry, 'key', text,
--       or entry, form, count, that many texts
local kept, to = 4, 3
local function place(entry) return string.format('%20s%20s', string.match(entry, '(%d+)%-(%d+)')) end
for key = 2, 3 do
  if KEYS[key] ~= KEYS[1] then
    local kind = redis.call('TYPE', KEYS[key]).ok
    if kind ~= 'stream' and kind ~= 'none' then
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
  if own == 1 then
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
      for place = #fields, 4000 + 1, -1 do fields[place] = nil end
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
