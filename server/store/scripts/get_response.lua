-- Arguments: response, owner.
if not owned('response', ARGV[3], ARGV[4]) then
  return { 'not_found', 'response', ARGV[3] }
end
return { 'ok', response_fields(ARGV[3]) }
