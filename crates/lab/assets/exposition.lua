-- Request counts in shared memory, shown by the worker that serves requests: sorted, matched and formatted series by series
-- whenever they are scraped, without a pause. What gateways in Lua did until they were told better; nothing here is sped up.

local lab = {}
local series = ngx.shared.series

-- After each request: one more of its series.
function lab.count()
    local id = ngx.var.arg_id or ""
    local name = 'http_requests_total{code="' .. ngx.var.status .. '",id="' .. id .. '"}'
    local _, failure = series:incr(name, 1, 0)
    if failure then
        ngx.log(ngx.ERR, "the dictionary of series does not take ", name, ": ", failure)
    end
end

-- Trailing zeroes of a histogram's bucket bounds are cut; nearly every series is matched in vain.
local function plain_bound(name)
    local before, bound, after = string.match(name, '^(.*[,{]le=")([^"]*)(".*)$')
    if not before then
        return name
    end
    return before .. string.gsub(bound, "%.?0+$", "") .. after
end

-- The whole exposition.
function lab.show()
    local names = series:get_keys(0)
    table.sort(names)
    local lines, families = {}, {}
    for _, name in ipairs(names) do
        local value = series:get(name)
        if value then
            local family = string.match(name, "^([^{]*)")
            if not families[family] then
                families[family] = true
                lines[#lines + 1] = string.format("# TYPE %s counter\n", family)
            end
            lines[#lines + 1] = string.format("%s %s\n", plain_bound(name), value)
        end
    end
    ngx.header.content_type = "text/plain; version=0.0.4"
    ngx.print(lines)
end

return lab
