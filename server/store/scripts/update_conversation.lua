-- Arguments: id, owner, metadata.
local id, owner = ARGV[3], ARGV[4]
if not owned('conversation', id, owner) then
  return { 'not_found', 'conversation', id }
end
redis.call('HSET', key('conversation', id), 'metadata', ARGV[5])
touch(id, owner)
refresh(id)
return { 'ok', conversation_fields(id) }
