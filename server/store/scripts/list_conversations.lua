-- Arguments: owner, id to start after or '', limit. Returns one more than the limit where there is more.
local owner, after, limit = ARGV[3], ARGV[4], tonumber(ARGV[5])
local used = key('conversations', owner)
local rank = 0
if after ~= '' then
  local found = redis.call('ZREVRANK', used, after)
  if not found then
    return { 'not_found', 'conversation', after }
  end
  rank = found + 1
end
local listed = {}
while #listed <= limit do
  local id = redis.call('ZREVRANGE', used, rank, rank)[1]
  if not id then
    break
  end
  local fields = conversation_fields(id)
  if fields then
    listed[#listed + 1] = fields
    rank = rank + 1
  else
    redis.call('ZREM', used, id) -- older than the retention
  end
end
return { 'ok', listed }
