-- Put behind every script that writes, whose body is main(). The last arguments are the time (Unix microseconds; 0:
-- none) after which it must not be done any more, and the key that counts this gateway's writes. What is answered is
-- followed by the count and the time; see redo.py.
local written, not_after = table.remove(ARGV), tonumber(table.remove(ARGV))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not_after > 0 and now > not_after then
  return { 'late', now }
end
local answer = main()
if answer[1] == 'ok' then
  answer[#answer + 1] = redis.call('INCR', written)
  answer[#answer + 1] = now
  redis.call('EXPIRE', written, 3600)
end
return answer
