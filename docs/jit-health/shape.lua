-- Counts requests: all of them in [1], those with a query in [2], and those of each second under the second.
local counts = { 0, 0 }

return function(conf, ctx)
  local second = ngx.time()
  counts[1] = counts[1] + 1
  if ngx.var.args then counts[2] = counts[2] + 1 end
  counts[second] = (counts[second] or 0) + 1
  ctx.in_this_second = counts[second]
end
