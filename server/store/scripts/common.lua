-- Put before every script. ARGV[1]: key prefix, ARGV[2]: retention in seconds; a script's own arguments start at 3.
-- Keys are derived here, not declared: this runs on one Redis (with replicas if you like), not on Redis Cluster.
-- The kind comes before the id in every key, so no id, whatever a client sends, can name a key of another kind.
local prefix, retention = ARGV[1], tonumber(ARGV[2])
local SLACK = 1 / 16
local lifetime = retention + math.floor(retention * SLACK)
local ENDED = { completed = true, incomplete = true, failed = true }

local function key(kind, id)
  return prefix .. ':' .. kind .. ':' .. id
end

-- The owner's length keeps "a:b" + "c" apart from "a" + "b:c".
local function command_key(kind, owner, command_id)
  return key(kind, #owner .. ':' .. owner .. ':' .. command_id)
end

local function get(id, field)
  return redis.call('HGET', key('response', id), field)
end

local function owned(kind, id, owner)
  return redis.call('HGET', key(kind, id), 'owner') == owner
end

-- A conversation as records.py reads it, or nil.
local function conversation_fields(id)
  local fields = redis.call('HMGET', key('conversation', id), 'owner', 'created_at', 'updated_at', 'metadata', 'head')
  if not fields[1] then
    return nil
  end
  local running = redis.call('LINDEX', key('queue', id), 0) or ''
  return { id, fields[1], fields[2], fields[3], fields[4], fields[5], running }
end

-- All keys of a thread expire in the same millisecond, `retention` after its last use or a little later: only when
-- less than that is left do all of them get a new time, which is `SLACK` later than need be. So a turn costs the same
-- in a thread of a thousand responses. `new` is a response that was just added, or nil. The log of a response is not
-- among the keys: it lives while the answer runs and journal_ttl_s longer.
local function refresh(thread, new)
  local members, time = key('thread', thread), redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local expiry = redis.call('PEXPIRETIME', members)
  local function expire(name)
    redis.call('PEXPIREAT', name, string.format('%.0f', expiry))
  end
  if expiry < now + retention * 1000 then
    expiry = now + lifetime * 1000
    for _, id in ipairs(redis.call('SMEMBERS', members)) do
      expire(key('response', id))
    end
    expire(members)
    expire(key('conversation', thread))
  elseif new then
    expire(key('response', new))
  end
  expire(key('queue', thread)) -- made anew whenever it was empty
end

-- Marks a conversation as just used.
local function touch(conversation, owner)
  local time = redis.call('TIME')
  local used = key('conversations', owner)
  redis.call('HSET', key('conversation', conversation), 'updated_at', time[1])
  redis.call('ZADD', used, string.format('%d%06d', time[1], time[2]), conversation)
  redis.call('EXPIRE', used, lifetime)
end

-- Turns before this one that have not ended.
local function position(conversation, id)
  local before = 0
  if conversation == '' then
    return before
  end
  for _, other in ipairs(redis.call('LRANGE', key('queue', conversation), 0, -1)) do
    if other == id then
      return before
    end
    if not ENDED[get(other, 'status')] then
      before = before + 1
    end
  end
  return 0
end

-- Fixes what a response follows: what the client named, else the conversation's head of this moment.
local function link(id)
  local record = redis.call('HMGET', key('response', id), 'parent', 'previous', 'conversation')
  local parent = record[1] or record[2]
  if parent == '' and not record[1] and record[3] ~= '' then
    parent = redis.call('HGET', key('conversation', record[3]), 'head') or ''
  end
  redis.call('HSET', key('response', id), 'parent', parent)
  return parent
end

-- Items of the chain that ends with `id`, oldest first, as JSON lists; nil and the missing id where it is broken.
local function chain(conversation, id)
  local newest_first, size = {}, 0
  while id ~= '' do
    local record = redis.call('HMGET', key('response', id), 'parent', 'input', 'output', 'conversation')
    if not record[1] then
      return nil, id
    end
    newest_first[size + 1], newest_first[size + 2] = record[3], record[2]
    size = size + 2
    id, conversation = record[1], record[4]
  end
  local items = {}
  if conversation ~= '' then
    items[1] = redis.call('HGET', key('conversation', conversation), 'items')
  end
  for index = size, 1, -1 do
    items[#items + 1] = newest_first[index]
  end
  return items
end

-- Lets a response run that no turn is before: returns what it follows and the items of that, or nil and what is missing.
local function run_now(id, conversation)
  local parent = link(id)
  redis.call('HSET', key('response', id), 'status', 'in_progress')
  redis.call('EXPIRE', key('events', id), lifetime)
  local items, missing = chain(conversation, parent)
  return items and parent, items or missing
end

-- Everything of a response, as records.py reads it.
local function response_fields(id)
  local newest = redis.call('XREVRANGE', key('events', id), '+', '-', 'COUNT', 1)[1]
  local fields = redis.call('HGETALL', key('response', id))
  fields[#fields + 1] = 'last_event'
  fields[#fields + 1] = newest and string.match(newest[1], '%-(%d+)$') or get(id, 'last_sequence_number')
  return fields
end
