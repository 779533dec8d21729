-- Arguments: id, owner, token of this call.
-- Takes everything in the thread along: also chains that left the conversation, for they cannot live without it.
local id, owner, token = ARGV[3], ARGV[4], ARGV[5]
local tombstone = key('deleted', id)
if not owned('conversation', id, owner) then
  if redis.call('GET', tombstone) == token then -- the reply to the same call was lost
    return { 'ok' }
  end
  return { 'not_found', 'conversation', id }
end
for _, response in ipairs(redis.call('SMEMBERS', key('thread', id))) do
  local command = get(response, 'command')
  if command and command ~= '' then
    redis.call('UNLINK', command)
  end
  redis.call('UNLINK', key('response', response), key('events', response))
  redis.call('HDEL', prefix .. ':running', response)
end
local command = redis.call('HGET', key('conversation', id), 'command')
if command ~= '' then
  redis.call('UNLINK', command)
end
redis.call('UNLINK', key('conversation', id), key('queue', id), key('thread', id))
redis.call('ZREM', key('conversations', owner), id)
redis.call('SET', tombstone, token, 'EX', 60)
return { 'ok' }
