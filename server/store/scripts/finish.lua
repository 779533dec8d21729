-- Arguments: response, epoch, status, output, snapshot, last sequence number or '', log lifetime in seconds, then
-- sequence number and event, in turn.
local id, epoch, status = ARGV[3], ARGV[4], ARGV[5]
local record = redis.call('HMGET', key('response', id), 'epoch', 'status', 'conversation', 'thread', 'owner')
if not record[1] then
  return { 'ok', '' } -- deleted meanwhile: nothing of it may come back
end
if tonumber(record[1]) > tonumber(epoch) then
  return { 'fenced', id }
end
local conversation = record[3]
local queue = key('queue', conversation)

-- Ended turns leave the queue from its front only, so the conversation's order is the order of `begin` also for a
-- turn that was cancelled while it waited.
local function settle()
  local first = redis.call('LINDEX', queue, 0)
  while first do
    local state = get(first, 'status')
    if state and not ENDED[state] then
      return
    end
    if state then
      link(first)
      redis.call('HSET', key('conversation', conversation), 'head', first)
    end
    redis.call('LPOP', queue)
    first = redis.call('LINDEX', queue, 0)
  end
end

if not ENDED[record[2]] then
  for index = 10, #ARGV, 2 do
    local added = redis.pcall('XADD', key('events', id), epoch .. '-' .. ARGV[index], 'e', ARGV[index + 1])
    if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
      return added -- nothing else is written yet, so the whole can be repeated
    end
  end
  redis.call('HSET', key('response', id), 'status', status, 'output', ARGV[6], 'snapshot', ARGV[7])
  if ARGV[8] ~= '' then
    redis.call('HSET', key('response', id), 'last_sequence_number', ARGV[8])
  end
  redis.call('EXPIRE', key('events', id), ARGV[9])
  redis.call('HDEL', prefix .. ':running', id)
  if conversation == '' then
    link(id)
  elseif redis.call('EXISTS', key('conversation', conversation)) == 1 then
    settle()
    touch(conversation, record[5])
  end
  refresh(record[4])
end
local first = redis.call('LINDEX', queue, 0)
return { 'ok', first and get(first, 'status') == 'queued' and first or '' }
