-- Arguments: conversation, owner.
local conversation, owner = ARGV[3], ARGV[4]
if not owned('conversation', conversation, owner) then
  return { 'not_found', 'conversation', conversation }
end
local items, missing = chain(conversation, redis.call('HGET', key('conversation', conversation), 'head'))
if not items then
  return { 'not_found', 'response', missing }
end
for _, id in ipairs(redis.call('LRANGE', key('queue', conversation), 0, -1)) do
  local record = redis.call('HMGET', key('response', id), 'input', 'output')
  items[#items + 1] = record[1] or '[]'
  items[#items + 1] = record[2] or '[]'
end
return { 'ok', items }
