-- Arguments: response, sequence number to start after, how many at most.
-- A takeover goes on with the next number in a higher epoch, so each epoch is asked for its own part.
local id, first, left = ARGV[3], string.format('%d', ARGV[4] + 1), tonumber(ARGV[5])
local events = {}
for epoch in string.gmatch(get(id, 'epochs') or '', '%d+') do
  if left > 0 then
    for _, entry in ipairs(redis.call('XRANGE', key('events', id), epoch .. '-' .. first, epoch, 'COUNT', left)) do
      events[#events + 1] = string.match(entry[1], '%-(%d+)$')
      events[#events + 1] = entry[2][2]
      left = left - 1
    end
  end
end
return { 'ok', events }
