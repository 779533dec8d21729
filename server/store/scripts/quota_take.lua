-- Takes what one thing costs from all its quotas, or from none. Arguments: the thing's id, the time in Unix
-- milliseconds or '' for ours, quotas as JSON (server/access/limits.py has their kinds), and what a repeated command is
-- known by: kind, owner, command id or ''. A repetition makes nothing new and costs nothing (-1).
-- Answers with the number of the first quota that does not have it (0: all have), and when it will, in milliseconds
-- from now (-1: waiting does not help).
local id, now, quotas = ARGV[3], tonumber(ARGV[4]), cjson.decode(ARGV[5])
if ARGV[8] ~= '' and redis.call('EXISTS', command_key(ARGV[6], ARGV[7], ARGV[8])) == 1 then
  return { 'ok', -1, 0 }
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local DAY = 86400000
local taken = {}

-- What was taken in the last `span` milliseconds.
function taken.window(quota, name)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', now - quota.span)
  if redis.call('ZSCORE', name, id) or redis.call('ZCARD', name) < quota.limit then
    return
  end
  -- The newest `limit` count: a limit that was lowered since may have let more in.
  local oldest = redis.call('ZRANGE', name, -quota.limit, -quota.limit, 'WITHSCORES')
  return math.max(1, (tonumber(oldest[2]) or now) + quota.span - now)
end

-- Places that are held now; each is given up unless it is renewed.
function taken.place(quota, name)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', now)
  if redis.call('ZSCORE', name, id) or redis.call('ZCARD', name) < quota.limit then
    return
  end
  return quota.retry
end

-- What this day has cost so far.
function taken.spent(quota, name)
  local used = tonumber(redis.call('GET', name .. ':' .. math.floor(now / DAY))) or 0
  return used >= quota.limit and DAY - now % DAY or nil
end

-- Conversations of an owner, with those that are being made; the oldest may be gone.
function taken.conversations(quota, name)
  local kept = key('conversations', quota.owner)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', now)
  local function count()
    local pending = 0
    for _, other in ipairs(redis.call('ZRANGE', name, 0, -1)) do
      if other ~= id and not redis.call('ZSCORE', kept, other) then
        pending = pending + 1
      end
    end
    return redis.call('ZCARD', kept) + pending
  end
  while count() >= quota.limit do
    local oldest = redis.call('ZRANGE', kept, 0, 0)[1]
    if not oldest or redis.call('EXISTS', key('conversation', oldest)) == 1 then
      return -1
    end
    redis.call('ZREM', kept, oldest)
  end
end

-- Turns of a conversation, with those that are being begun.
function taken.turns(quota, name)
  local thread = key('thread', quota.conversation)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', now)
  local count = redis.call('SCARD', thread)
  for _, other in ipairs(redis.call('ZRANGE', name, 0, -1)) do
    if other ~= id and redis.call('SISMEMBER', thread, other) == 0 then
      count = count + 1
    end
  end
  return count >= quota.limit and -1 or nil
end

for number, quota in ipairs(quotas) do
  local wait = taken[quota.kind](quota, key('quota', quota.key))
  if wait then
    return { 'ok', number, wait }
  end
end
for _, quota in ipairs(quotas) do
  local name = key('quota', quota.key)
  if quota.kind == 'window' then
    redis.call('ZADD', name, 'NX', now, id)
    redis.call('PEXPIRE', name, quota.span)
  elseif quota.lease then
    redis.call('ZADD', name, now + quota.lease, id)
    redis.call('PEXPIRE', name, quota.lease)
  end
end
return { 'ok', 0, 0 }
