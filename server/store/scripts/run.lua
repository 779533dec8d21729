-- Put behind every script, whose body is main(). Its last arguments:
-- 1. when this gateway first asked here (Unix microseconds). A server that has started since may have lost what other
--    gateways wrote, until they have had the time to write it again: what is missing may yet come;
-- 2. '1' where nothing of that may come later than this;
-- 3. for what is written again: its place among all writes, else 0;
-- 4. the time after which it must not be done any more, or 0;
-- 5. the key that counts this gateway's writes, or '' where nothing is written.
-- What a write answers is followed by its place among this gateway's writes and among all, and the time; see redo.py.
local written, not_after = table.remove(ARGV), tonumber(table.remove(ARGV))
local place, is_ordered, since = tonumber(table.remove(ARGV)), table.remove(ARGV) == '1', tonumber(table.remove(ARGV))
local all = prefix .. ':written'
local time = redis.call('TIME')

-- Whether something that was lost may yet come: until `seconds` after a start, or after a gateway has found a loss (as
-- after a failover). That one's mark lives three seconds.
local function may_come_back(seconds)
  if redis.call('PTTL', prefix .. ':lost') > (3 - seconds) * 1000 then
    return true
  end
  local told = redis.pcall('INFO', 'server') -- hosted servers forbid it to some users
  local uptime = type(told) == 'string' and tonumber(string.match(told, 'uptime_in_seconds:(%-?%d+)'))
  -- Below zero where its clock was put back: then it does not tell how old it is.
  return uptime and uptime >= 0 and uptime < seconds and math.floor(since / 1000000) < time[1] - uptime
end

local now = time[1] * 1000000 + time[2]
if not_after > 0 and now > not_after then
  return { 'late', now }
end
if is_ordered and may_come_back(3) then
  return { 'early' }
end
if place > 0 and place > tonumber(redis.call('GET', all) or 0) + 1 and may_come_back(2) then
  return { 'early' } -- another gateway has yet to write what came before
end
local answer = main()
if answer[1] == 'not_found' and place == 0 and may_come_back(3) then
  return { 'early' }
end
if answer[1] == 'ok' and written ~= '' then
  local count = redis.call('INCR', written)
  redis.call('EXPIRE', written, 3600)
  if place == 0 then
    place = redis.call('INCR', all)
  elseif place > tonumber(redis.call('GET', all) or 0) then
    redis.call('SET', all, place)
  end
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = count, place, now
end
return answer
