-- No arguments. Returns responses and their models, in turn.
local alive, orphans = {}, {}
local running = redis.call('HGETALL', prefix .. ':running')
for index = 1, #running, 2 do
  local id, gateway = running[index], running[index + 1]
  if alive[gateway] == nil then
    alive[gateway] = redis.call('EXISTS', key('gateway', gateway)) == 1
  end
  if redis.call('EXISTS', key('response', id)) == 0 then
    redis.call('HDEL', prefix .. ':running', id) -- older than the retention
  elseif not alive[gateway] then
    orphans[#orphans + 1], orphans[#orphans + 2] = id, get(id, 'model')
  end
end
return { 'ok', orphans }
