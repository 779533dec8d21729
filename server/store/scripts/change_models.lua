-- Arguments: the field `mark` as it was read ('' where there was none), what it becomes, how many fields to drop, their
-- names, then names and values of those to write.
-- Answers with 1, or with 0 where others have changed something since: then nothing is written.
local models, seen, mark, dropped = prefix .. ':models', ARGV[3], ARGV[4], tonumber(ARGV[5])
local found = redis.call('HGET', models, 'mark') or ''
if found == mark then
  return { 'ok', 1 } -- asked again, as the answer was lost
end
if found ~= seen then
  return { 'ok', 0 }
end
for index = 6, 5 + dropped do
  redis.call('HDEL', models, ARGV[index])
end
for index = 6 + dropped, #ARGV, 2 do
  redis.call('HSET', models, ARGV[index], ARGV[index + 1])
end
redis.call('HSET', models, 'mark', mark)
return { 'ok', 1 }
