-- Arguments: the time in Unix milliseconds or '' for ours, quotas as JSON.
-- Answers with what is used of each quota now, and when that changes, in milliseconds from now (-1: not by waiting).
local now, quotas = tonumber(ARGV[3]), cjson.decode(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local DAY = 86400000
local answer = { 'ok' }
for _, quota in ipairs(quotas) do
  local name, used, wait = key('quota', quota.key), 0, -1
  if quota.kind == 'window' then
    local since = '(' .. string.format('%.0f', now - quota.span)
    used = redis.call('ZCOUNT', name, since, '+inf')
    local oldest = redis.call('ZRANGEBYSCORE', name, since, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    wait = oldest[2] and oldest[2] + quota.span - now or 0
  elseif quota.kind == 'place' then
    used = redis.call('ZCOUNT', name, '(' .. string.format('%.0f', now), '+inf')
  elseif quota.kind == 'spent' then
    used = tonumber(redis.call('GET', name .. ':' .. math.floor(now / DAY))) or 0
    wait = DAY - now % DAY
  elseif quota.kind == 'conversations' then
    used = redis.call('ZCARD', key('conversations', quota.owner))
  end
  answer[#answer + 1] = used
  answer[#answer + 1] = wait
end
return answer
