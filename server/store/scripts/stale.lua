-- Arguments: response and epoch, in turn. Returns the responses that their writers do not hold any more.
local stale = {}
for index = 3, #ARGV, 2 do
  local epoch = get(ARGV[index], 'epoch')
  if not epoch or tonumber(epoch) > tonumber(ARGV[index + 1])
    or redis.call('EXISTS', key('events', ARGV[index])) == 0 then
    stale[#stale + 1] = ARGV[index]
  end
end
return { 'ok', stale }
