-- Put behind every script that writes, whose body is main(). Its last arguments:
-- 1. when this gateway first wrote here (Unix microseconds), or 0. A server that has started since may have lost what
--    other gateways wrote: until they have had the time to write it again, nothing may come before it;
-- 2. the time after which it must not be done any more, or 0;
-- 3. the key that counts this gateway's writes.
-- What is answered is followed by the count and the time; see redo.py.
local written, not_after = table.remove(ARGV), tonumber(table.remove(ARGV))
local since = tonumber(table.remove(ARGV))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function has_just_started()
  local told = redis.pcall('INFO', 'server') -- hosted servers forbid it to some users
  local uptime = type(told) == 'string' and tonumber(string.match(told, 'uptime_in_seconds:(%d+)'))
  return uptime and uptime < 3 and since < now - (uptime + 1) * 1000000
end

if not_after > 0 and now > not_after then
  return { 'late', now }
end
if since > 0 and has_just_started() then
  return { 'early' }
end
local answer = main()
if answer[1] == 'ok' then
  answer[#answer + 1] = redis.call('INCR', written)
  answer[#answer + 1] = now
  redis.call('EXPIRE', written, 3600)
end
return answer
