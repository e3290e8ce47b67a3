-- Part of a call that changes no account: replaces `redis`, so that no other part writes. The list of
-- a sliding log is read after it was written, so its changes are kept here. Slots that this process
-- has freed, or that have ended, are removed as by any call.
local redis, server, lists = {}, redis, {}

-- Returns the changes of a list: the number of entries that were removed from its start, or nothing
-- for all of them, and the added entries.
local function changes(list)
  lists[list] = lists[list] or { removed = 0, added = {} }
  return lists[list]
end

local function nothing() end

local instead = {
  PSETEX = nothing, PEXPIRE = nothing, ZADD = nothing,

  DEL = function(list)
    lists[list] = { added = {} }
  end,

  -- Only the first entry (0) and the last one (-1) are read.
  LINDEX = function(list, index)
    local changed, entry = changes(list), nil
    local added = changed.added
    if index < 0 and #added > 0 then
      return added[#added]
    elseif changed.removed then
      entry = server.pcall('LINDEX', list, index < 0 and index or changed.removed)
    end
    return entry or added[1]
  end,

  LRANGE = function(list, from, to)
    local changed, entries = changes(list), {}
    local removed = changed.removed
    if removed then
      entries = server.pcall('LRANGE', list, from + removed, to < 0 and to or to + removed)
    end
    for _, added in ipairs(changed.added) do
      entries[#entries + 1] = added
    end
    return entries
  end,

  LPOP = function(list)
    local changed = changes(list)
    if changed.removed then
      changed.removed = changed.removed + 1
    else
      table.remove(changed.added, 1)
    end
  end,

  RPUSH = function(list, entry)
    local added = changes(list).added
    added[#added + 1] = entry
  end,

  -- The reply has the units that no entry has, at the instant of the last one.
  LSET = nothing,
}

for _, call in ipairs({ 'call', 'pcall' }) do
  redis[call] = function(command, ...)
    local own = instead[command]
    if own then
      return own(...)
    end
    return server[call](command, ...)
  end
end
