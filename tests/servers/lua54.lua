-- The commands that the scripts use, under Lua 5.4, whose numbers are integers or floats. Reads
-- commands: their number of words, and the length and bytes of each. Writes replies in the protocol
-- of Redis, each after its length. Keys do not expire: a test drives the clock of the scripts.

local values, ttls = {}, {}

-- `struct` of Redis on top of `string.pack`. In `c0`, the length of a string is not written, and is
-- the number before it when it is read.
struct = {}
function struct.pack(format, ...)
  local plain, whole = format:gsub('c0', '')
  if whole == 0 then
    return string.pack(format, ...)
  end
  local words = { ... }
  return string.pack(plain, ...) .. words[#words]
end
function struct.unpack(format, ...)
  return string.unpack(format:gsub('Hc0', 's2'), ...)
end
unpack = table.unpack

local function text_of(value)
  if type(value) ~= 'number' then
    return value
  end
  local whole = math.tointeger(value)
  return whole and tostring(whole) or string.format('%.17g', value)
end

local function list_of(key)
  values[key] = values[key] or {}
  return values[key]
end

-- The members of a sorted set in order.
local function sorted(key)
  local members, scores = {}, values[key] or {}
  for member in pairs(scores) do
    members[#members + 1] = member
  end
  table.sort(members, function(one, other)
    if scores[one] == scores[other] then
      return one < other
    end
    return scores[one] < scores[other]
  end)
  return members, scores
end

local function place(index, length)
  index = math.tointeger(tonumber(index))
  return index < 0 and length + index + 1 or index + 1
end

local function slice(items, from, to)
  local found = {}
  for index = math.max(1, place(from, #items)), math.min(#items, place(to, #items)) do
    found[#found + 1] = items[index]
  end
  return found
end

-- Returns a function that says if a score is in a range such as `(5` to `+inf`.
local function within(from, to)
  local function bound(text)
    local open = text:sub(1, 1) == '('
    text = open and text:sub(2) or text
    local infinite = ({ ['+inf'] = math.huge, ['-inf'] = -math.huge })[text]
    return infinite or tonumber(text), open
  end
  local least, is_least_open = bound(from)
  local most, is_most_open = bound(to)
  return function(score)
    return (score > least or not is_least_open and score == least)
      and (score < most or not is_most_open and score == most)
  end
end

local commands = {}

function commands.TIME()
  return { tostring(os.time()), '0' }
end
function commands.GET(key)
  return values[key] or false
end
function commands.MGET(...)
  local found = {}
  for index, key in ipairs({ ... }) do
    found[index] = type(values[key]) == 'string' and values[key] or false
  end
  return found
end
function commands.EXISTS(...)
  local count = 0
  for _, key in ipairs({ ... }) do
    count = count + (values[key] and 1 or 0)
  end
  return count
end
function commands.DEL(...)
  local count = commands.EXISTS(...)
  for _, key in ipairs({ ... }) do
    values[key], ttls[key] = nil, nil
  end
  return count
end
function commands.PSETEX(key, ms, value)
  ttls[key] = assert(math.tointeger(tonumber(ms)), ms)
  values[key] = value
  return { ok = 'OK' }
end
function commands.PTTL(key)
  return values[key] and (ttls[key] or -1) or -2
end
function commands.PEXPIRE(key, ms)
  ttls[key] = assert(math.tointeger(tonumber(ms)), ms)
  return values[key] and 1 or 0
end

function commands.RPUSH(key, ...)
  local list = list_of(key)
  for _, item in ipairs({ ... }) do
    list[#list + 1] = item
  end
  return #list
end
function commands.LINDEX(key, index)
  local list = values[key] or {}
  return list[place(index, #list)] or false
end
function commands.LRANGE(key, from, to)
  return slice(values[key] or {}, from, to)
end
function commands.LSET(key, index, item)
  local list = values[key]
  list[place(index, #list)] = item
  return { ok = 'OK' }
end
function commands.LPOP(key)
  local first = table.remove(values[key] or {}, 1)
  if values[key] and #values[key] == 0 then
    commands.DEL(key)
  end
  return first or false
end
-- Removes one item, the first or, if `count` is negative, the last.
function commands.LREM(key, count, item)
  local list = values[key] or {}
  local from, to, step = 1, #list, 1
  if tonumber(count) < 0 then
    from, to, step = #list, 1, -1
  end
  for index = from, to, step do
    if list[index] == item then
      table.remove(list, index)
      if #list == 0 then
        commands.DEL(key)
      end
      return 1
    end
  end
  return 0
end

function commands.ZADD(key, ...)
  local words, at, added = { ... }, 1, 0
  local only_known = words[1] == 'XX'
  if only_known then
    at = 2
  end
  local set = list_of(key)
  for index = at, #words, 2 do
    local score, member = tonumber(words[index]), words[index + 1]
    if set[member] or not only_known then
      added = added + (set[member] and 0 or 1)
      set[member] = score
    end
  end
  if not next(set) then
    commands.DEL(key)
  end
  return added
end
function commands.ZREM(key, ...)
  local set, count = values[key] or {}, 0
  for _, member in ipairs({ ... }) do
    count = count + (set[member] and 1 or 0)
    set[member] = nil
  end
  if not next(set) then
    commands.DEL(key)
  end
  return count
end
function commands.ZCARD(key)
  return #sorted(key)
end
function commands.ZCOUNT(key, from, to)
  local count, is_within = 0, within(from, to)
  for _, score in pairs(values[key] or {}) do
    count = count + (is_within(score) and 1 or 0)
  end
  return count
end
function commands.ZMSCORE(key, ...)
  local found, set = {}, values[key] or {}
  for index, member in ipairs({ ... }) do
    found[index] = set[member] and text_of(set[member]) or false
  end
  return found
end
function commands.ZRANGE(key, from, to, ...)
  local members, scores = sorted(key)
  local options = {}
  for _, option in ipairs({ ... }) do
    options[option] = true
  end
  if options.BYSCORE then
    local is_within = options.REV and within(to, from) or within(from, to)
    local found = {}
    for _, member in ipairs(members) do
      if is_within(scores[member]) then
        table.insert(found, options.REV and 1 or #found + 1, member)
      end
    end
    return slice(found, 0, 255)
  end
  local found = {}
  for _, member in ipairs(slice(members, from, to)) do
    found[#found + 1] = member
    if options.WITHSCORES then
      found[#found + 1] = text_of(scores[member])
    end
  end
  return found
end

redis = {}
function redis.call(name, ...)
  local words = { ... }
  for index, word in ipairs(words) do
    words[index] = text_of(word)
  end
  return commands[name](table.unpack(words))
end
function redis.pcall(...)
  local done, reply = pcall(redis.call, ...)
  if done then
    return reply
  end
  return { err = reply }
end

-- A reply in the protocol. A float is cut, and a table ends before its first nil.
local function encoded(reply)
  if type(reply) == 'number' then
    return (':%d\r\n'):format(reply // 1)
  elseif type(reply) == 'string' then
    return ('$%d\r\n%s\r\n'):format(#reply, reply)
  elseif type(reply) ~= 'table' then
    return reply and ':1\r\n' or '$-1\r\n'
  elseif reply.ok or reply.err then
    return (reply.ok and '+' or '-') .. (reply.ok or reply.err) .. '\r\n'
  end
  local parts = {}
  for index, part in ipairs(reply) do
    parts[index] = encoded(part)
  end
  return ('*%d\r\n%s'):format(#parts, table.concat(parts))
end

-- The scripts by their hash. A client that learns that a script is missing sends its text at once.
local scripts, missing = {}, nil

local function run(script, words)
  local count = math.tointeger(tonumber(words[3]))
  KEYS = table.move(words, 4, 3 + count, 1, {})
  ARGV = table.move(words, 4 + count, #words, 1, {})
  local done, reply = xpcall(script, debug.traceback)
  return done and encoded(reply) or '-ERR ' .. reply:gsub('[\r\n]', ' ') .. '\r\n'
end

local function answer(words)
  local name = words[1]:upper()
  if name == 'EVALSHA' and scripts[words[2]] then
    return run(scripts[words[2]], words)
  elseif name == 'EVALSHA' then
    missing = words[2]
    return '-NOSCRIPT No matching script.\r\n'
  elseif name == 'EVAL' then
    scripts[missing] = assert(load(words[2]))
    return run(scripts[missing], words)
  elseif commands[name] then
    return encoded(commands[name](table.unpack(words, 2)))
  end
  return '$0\r\n\r\n'
end

local line = io.read('n', 'l')
while line do
  local words = {}
  for index = 1, line do
    local length = io.read('n', 'l')
    words[index] = io.read(length)
    io.read('l')
  end
  local reply = answer(words)
  io.write(#reply, '\n', reply)
  io.flush()
  line = io.read('n', 'l')
end
