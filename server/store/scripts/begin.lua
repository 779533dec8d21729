-- Arguments: response, owner, conversation or '', previous or '', command_id or '', model, created_at, input, request,
-- snapshot, gateway, turns that may wait behind the running one, command lifetime in seconds.
local id, owner, conversation, previous, command_id = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local command = command_id ~= '' and command_key('turn-command', owner, command_id) or ''

-- 1. The client sent this command before.
if command ~= '' then
  local earlier = redis.call('GET', command)
  if earlier and earlier ~= id and owned('response', earlier, owner) then
    return { 'ok', earlier, 1, position(get(earlier, 'conversation'), earlier) }
  end
end
-- 2. We sent this very turn before, and its reply was lost.
if redis.call('EXISTS', key('response', id)) == 1 then
  if not owned('response', id, owner) then
    return { 'not_found', 'response', id }
  end
  return { 'ok', id, 0, position(conversation, id) }
end
-- 3. It may not be begun.
local thread = id
if conversation ~= '' then
  if not owned('conversation', conversation, owner) then
    return { 'not_found', 'conversation', conversation }
  end
  thread = conversation
end
if previous ~= '' then
  if not owned('response', previous, owner) then
    return { 'not_found', 'previous_response', previous }
  end
  local parent = redis.call('HMGET', key('response', previous), 'conversation', 'status', 'parent', 'thread')
  if conversation ~= '' and parent[1] ~= conversation then
    return { 'not_in_conversation', previous, conversation }
  end
  -- Without a parent it was cancelled while it waited, and its place in the order comes later.
  if not (ENDED[parent[2]] and parent[3]) then
    return { 'running', previous }
  end
  thread = parent[4]
end
if conversation ~= '' and redis.call('LLEN', key('queue', conversation)) > tonumber(ARGV[14]) then
  return { 'full', conversation, ARGV[14] }
end
-- 4. Begin it.
redis.call('HSET', key('response', id), 'owner', owner, 'conversation', conversation, 'previous', previous,
  'thread', thread, 'status', 'queued', 'model', ARGV[8], 'created_at', ARGV[9], 'epoch', 1, 'epochs', '1', 'gateway', ARGV[13],
  'input', ARGV[10], 'output', '[]', 'request', ARGV[11], 'snapshot', ARGV[12], 'command', command,
  'last_sequence_number', -1)
-- An empty log: events are written with NOMKSTREAM, so that what was deleted does not come back.
redis.call('XGROUP', 'CREATE', key('events', id), 'make', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', key('events', id), 'make')
redis.call('EXPIRE', key('events', id), lifetime)
redis.call('HSET', prefix .. ':running', id, ARGV[13])
redis.call('SADD', key('thread', thread), id)
if command ~= '' then
  redis.call('SET', command, id, 'EX', ARGV[15])
end
if conversation ~= '' then
  redis.call('RPUSH', key('queue', conversation), id)
  touch(conversation, owner)
end
refresh(thread, id)
-- 5. Where nothing is before it, it runs at once.
local before = position(conversation, id)
if before > 0 then
  return { 'ok', id, 0, before }
end
local parent, items = run_now(id, conversation)
if not parent then
  return { 'ok', id, 0, before } -- what it follows is gone: `start` says so
end
return { 'ok', id, 0, before, parent, items }
