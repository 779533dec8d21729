-- Arguments: response, gateway.
local id, gateway = ARGV[3], ARGV[4]
local record = redis.call('HMGET', key('response', id), 'status', 'gateway', 'epoch')
if not record[1] or ENDED[record[1]] then
  return { 'ok' }
end
if record[2] ~= gateway then -- else it is ours already, and the reply that said so was lost
  if redis.call('EXISTS', key('gateway', record[2])) == 1 then
    return { 'ok' }
  end
  redis.call('HSET', key('response', id), 'gateway', gateway, 'epoch', record[3] + 1)
  redis.call('HSET', prefix .. ':running', id, gateway)
  -- From now on Redis refuses every id of the old epoch, also before the new owner's first event.
  if redis.call('EXISTS', key('events', id)) == 1 then
    redis.call('XSETID', key('events', id), record[3] .. '-18446744073709551615')
    redis.call('EXPIRE', key('events', id), lifetime)
  end
end
return { 'ok', response_fields(id) }
