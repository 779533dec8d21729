-- Gives places back and writes costs down, once for each id. Arguments: the thing's id, the time in Unix milliseconds
-- or '' for ours, quotas as JSON: those to give back, and those that something was spent of (with an amount).
local id, now, quotas = ARGV[3], tonumber(ARGV[4]), cjson.decode(ARGV[5])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local DAY = 86400000
local costs
for _, quota in ipairs(quotas) do
  local name = key('quota', quota.key)
  if quota.kind == 'spent' then
    -- A lost reply is asked again: what was written down must not be twice.
    costs = costs or (redis.call('SET', key('quota', 'charged:' .. id), 1, 'NX', 'EX', 3600) and 'new' or 'old')
    if costs == 'new' and quota.amount > 0 then
      name = name .. ':' .. math.floor(now / DAY)
      redis.call('INCRBY', name, quota.amount)
      redis.call('PEXPIRE', name, 2 * DAY)
    end
  else
    redis.call('ZREM', name, id)
  end
end
return { 'ok' }
