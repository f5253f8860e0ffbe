#!/bin/sh
# The closure that made a cache slow (docs/jit-health.md), found among commits and explained.
# Usage: closure.sh LAB STILLGATE WARM_RUNS [FOLDER], the last being the example of the crate `lua`.
#
# 1. A repository of 32 commits that change one function in Lua; one of them has it make a closure for each request.
# 2. `bisect` by the time of a run: it names the commit.
# 3. `explain` of the gateway with the function before and after: it names the function.
#
# What comes out stays in FOLDER (closure). `closure.sh serve …` is the gateway that step 3 starts.
set -eu
planted=$(realpath "$(dirname "$0")/../../../docs/jit-health/closure.lua")

serve() {
    stillgate=$1 file=$2 address=$3 upstream=$4 metrics=$5 admin=$6 folder=$7
    {
        cat <<CONFIGURATION
gateway:
  workers: 1
  listeners: [{address: "$address"}]
  metrics: {address: "$metrics"}
  admin: {address: "$admin"}
  debug: {pprof: true}
upstreams:
  - {id: upstream, type: roundrobin, nodes: {"$upstream": 1}}
routes:
  - id: cached
    uri: /*
    upstream_id: upstream
    plugins:
      serverless-pre-function:
        phase: access
        functions:
          - |
CONFIGURATION
        sed 's/^/            /' "$file"
    } >"$folder/gateway.yaml"
    exec "$stillgate" run --config "$folder/gateway.yaml"
}

if [ "${1:-}" = serve ]; then
    shift
    serve "$@"
fi

lab=$(realpath "$1") stillgate=$(realpath "$2") warm_runs=$(realpath "$3") own=$(realpath "$0")
folder=${4:-closure}
mkdir -p "$folder" && cd "$folder" && rm -rf repository cache
git init --quiet --initial-branch main repository
culprit=20
# The mended function, each part of it in the line where closure.lua has it: functions are named by their lines.
cat >mended.lua <<'LUA'
-- The route of a request, kept in a cache by the fields that routes ask for.
local cache = require("resty.lrucache").new(1000)
local fields = { "request_method", "scheme", "host", "uri" }
local function add_field(key, name, value) return key .. name .. "=" .. (value or "") .. "|" end
local function each_field(key, visit)
  for at = 1, #fields do key = visit(key, fields[at], ngx.var[fields[at]]) end
  return key end

return function(conf, ctx)
  local key = each_field("", add_field)
  local route = cache:get(key)
  if not route then
    route = "the route of " .. key
    cache:set(key, route)
  end
  ctx.route = route
end
LUA
for number in $(seq 0 31); do
    file=mended.lua subject="Reword the comment for the time $number"
    [ "$number" -ge "$culprit" ] && file=$planted
    [ "$number" -eq "$culprit" ] && subject="Give each field to a function, which adds it to the key"
    { echo "-- Reworded for the time $number."; cat "$file"; } >route.lua
    printf 'commit refs/heads/main\nmark :%s\ncommitter A <a@example.org> %s +0000\n' $((number + 1)) $((1700000000 + number))
    printf 'data %s\n%s\n' "${#subject}" "$subject"
    [ "$number" -gt 0 ] && printf 'from :%s\n' "$number"
    printf 'M 100644 inline route.lua\ndata %s\n' "$(wc -c <route.lua)"
    cat route.lua
    echo
done >stream
git -C repository fast-import --quiet --force <stream
git -C repository reset --quiet --hard main

WARM_RUNS=$warm_runs "$lab" bisect --repo repository --cache cache --good "main~31" --bad main --json bisect.json \
    --measure '"$WARM_RUNS" route.lua 200000 | cut -d" " -f1'
found=$(sed -n 's/^ *"culprit": "\(.*\)",*$/\1/p' bisect.json | head -1)
git -C repository show "$found~1:route.lua" >before.lua
git -C repository show "$found:route.lua" >after.lua
gateway() { echo "sh '$own' serve '$stillgate' '$PWD/$1' {address} {upstream} {metrics} {admin} {dir}"; }
"$lab" explain "$(gateway before.lua)" "$(gateway after.lua)" --no-instructions --slices 6 --seconds 4 --json explain.json --html explain.html
