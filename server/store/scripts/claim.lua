-- Arguments: response, gateway, and the epoch that this claim has made where it was lost and is written again, else 0.
-- The new epoch is the time in milliseconds, so that no two claims ever make the same one: also where Redis has lost the
-- first of them, the second fences whoever made it.
local id, gateway = ARGV[3], ARGV[4]
local record = redis.call('HMGET', key('response', id), 'status', 'gateway', 'epoch', 'epochs')
if not record[1] or ENDED[record[1]] then
  return { 'ok' }
end
if record[2] ~= gateway then -- else it is ours already, and the reply that said so was lost
  if redis.call('EXISTS', key('gateway', record[2])) == 1 then
    return { 'ok' }
  end
  local time, made = redis.call('TIME'), tonumber(ARGV[5])
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch = string.format('%.0f', math.max(record[3] + 1, made > 0 and made or now))
  redis.call('HSET', key('response', id), 'gateway', gateway, 'epoch', epoch, 'epochs', record[4] .. ',' .. epoch)
  redis.call('HSET', prefix .. ':running', id, gateway)
  -- From now on Redis refuses every id of an older epoch, also before the new owner's first event.
  if redis.call('EXISTS', key('events', id)) == 1 then
    redis.call('XSETID', key('events', id), string.format('%.0f', epoch - 1) .. '-18446744073709551615')
    redis.call('EXPIRE', key('events', id), lifetime)
  end
end
return { 'ok', response_fields(id) }
