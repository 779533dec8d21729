-- Holds places for another while. Arguments: lease in milliseconds, then pairs of a quota's key and an id.
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
for index = 4, #ARGV, 2 do
  local name = key('quota', ARGV[index])
  redis.call('ZADD', name, until_ms, ARGV[index + 1])
  redis.call('PEXPIRE', name, ARGV[3])
end
return { 'ok' }
