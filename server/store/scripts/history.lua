-- Arguments: owner, conversation or '', previous or ''.
local owner, conversation, previous = ARGV[3], ARGV[4], ARGV[5]
local head = previous
if conversation ~= '' then
  if not owned('conversation', conversation, owner) then
    return { 'not_found', 'conversation', conversation }
  end
  if previous == '' then
    head = redis.call('HGET', key('conversation', conversation), 'head')
  end
end
if previous ~= '' then
  if not owned('response', previous, owner) then
    return { 'not_found', 'previous_response', previous }
  end
  if conversation ~= '' and get(previous, 'conversation') ~= conversation then
    return { 'not_in_conversation', previous, conversation }
  end
  if not (ENDED[get(previous, 'status')] and get(previous, 'parent')) then
    return { 'running', previous }
  end
end
local items, missing = chain(conversation, head)
if not items then
  return { 'not_found', 'previous_response', missing }
end
return { 'ok', head, items }
