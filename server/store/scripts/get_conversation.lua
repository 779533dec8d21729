-- Arguments: id, owner.
if not owned('conversation', ARGV[3], ARGV[4]) then
  return { 'not_found', 'conversation', ARGV[3] }
end
return { 'ok', conversation_fields(ARGV[3]) }
