-- The same as shape.lua with a table for each kind of key.
local totals = { 0, 0 }
local by_second = {}

return function(conf, ctx)
  local second = ngx.time()
  totals[1] = totals[1] + 1
  if ngx.var.args then totals[2] = totals[2] + 1 end
  by_second[second] = (by_second[second] or 0) + 1
  ctx.in_this_second = by_second[second]
end
