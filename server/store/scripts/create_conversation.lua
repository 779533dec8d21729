-- Arguments: id, owner, created_at, metadata, items, command_id, command lifetime in seconds.
local id, owner, command_id = ARGV[3], ARGV[4], ARGV[8]
local command = command_id ~= '' and command_key('conversation-command', owner, command_id) or ''
if command ~= '' then
  local earlier = redis.call('GET', command)
  local fields = earlier and conversation_fields(earlier)
  if fields then
    return { 'ok', fields }
  end
end
if redis.call('EXISTS', key('conversation', id)) == 1 then -- the reply to the same call was lost
  if not owned('conversation', id, owner) then
    return { 'not_found', 'conversation', id }
  end
  return { 'ok', conversation_fields(id) }
end
redis.call('HSET', key('conversation', id), 'owner', owner, 'created_at', ARGV[5], 'metadata', ARGV[6],
  'items', ARGV[7], 'head', '', 'command', command)
touch(id, owner)
refresh(id)
if command ~= '' then
  redis.call('SET', command, id, 'EX', ARGV[9])
end
return { 'ok', conversation_fields(id) }
