-- Arguments: response, epoch.
local id, epoch = ARGV[3], tonumber(ARGV[4])
local record = redis.call('HMGET', key('response', id), 'epoch', 'status', 'conversation')
if not record[1] then
  return { 'not_found', 'response', id }
end
if tonumber(record[1]) > epoch or ENDED[record[2]] then
  return { 'fenced', id }
end
local before = position(record[3], id)
if before > 0 then
  return { 'ok', 'waiting', before }
end
local parent, items = run_now(id, record[3])
if not parent then
  return { 'not_found', 'previous_response', items }
end
return { 'ok', 'ready', parent, items }
