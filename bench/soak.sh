#!/bin/bash
# soak.sh FOLDER [TIME] [RATE]: a gateway under steady load, beside which it is scraped every 5 s, and every 30 s reloaded and its log
# rotated. FOLDER/soak.html shows percentiles, memory, descriptors and CPU over time.
#
#   GATEWAY=target/dist/bin/stillgate LAB=target/dist/bin/stillgate-lab bash bench/soak.sh target/soak 24h 500
#
# Exit code 4: a request failed, or memory or descriptors grew.
set -euo pipefail
folder=${1:?usage: soak.sh FOLDER [TIME] [RATE]} time=${2:-1h} rate=${3:-500}
gateway=$(realpath "${GATEWAY:-target/dist/bin/stillgate}") lab=$(realpath "${LAB:-target/dist/bin/stillgate-lab}")
# What may be more in the last tenth of the run than in the first.
growth_kib_max=16384 growth_descriptors_max=64
mkdir -p "$folder"
cd "$folder"
rm -f ./*.log ./*.log.* soak.json soak.html stillgate.yaml
started=()
trap 'trap - EXIT; kill "${started[@]}" 2>/dev/null || true; wait' EXIT

# listening FILE: waits for the address in a program's first line.
listening() {
  for _ in $(seq 200); do
    sed -n 's/^listening on //p' "$1" | grep . && return
    sleep 0.05
  done
  echo "soak.sh: $1 names no address; the program did not start" >&2
  exit 2
}

for node in a b; do
  "$lab" respond --body-bytes 1000 >"$node.log" 2>&1 & started+=($!)
done
a=$(listening a.log)
b=$(listening b.log)
read -r port admin < <(python3 -c 'import socket
held = [socket.socket() for _ in range(2)]
for one in held: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in held))')
cat >stillgate.yaml <<END
gateway:
  workers: 2
  listeners: [{address: "127.0.0.1:$port"}]
  admin: {address: "127.0.0.1:$admin"}
  access_log: {path: $PWD/access.log}
upstreams:
  - {id: nodes, nodes: {"$a": 1, "$b": 1}, checks: {active: {type: tcp, healthy: {interval: 1}, unhealthy: {interval: 1}}}}
consumers:
  - {username: ann, plugins: {key-auth: {key: key-of-ann}}}
routes:
  - id: api
    uri: /api/*
    upstream_id: nodes
    plugins:
      key-auth: {}
      limit-count: {count: 100000000, time_window: 60, key_type: var, key: consumer_name}
      response-rewrite: {headers: {set: {X-Served-By: stillgate}}}
      proxy-rewrite: {regex_uri: ["^/api/(.*)", "/\$1"]}
  - {id: changing, uri: /changing-0, upstream_id: nodes}
  - {id: all, uri: /*, upstream_id: nodes}
END
cat >mix.yaml <<'END'
variables:
  id: {range: [1, 100000]}
requests:
  - {name: keyed, weight: 8, path: "/api/orders/${id}", headers: {apikey: key-of-ann}}
  - {name: open, weight: 2, path: "/look/${id}"}
END
"$gateway" run --config stillgate.yaml >gateway.log 2>&1 & pid=$! started+=($!)
for _ in $(seq 200); do
  curl --silent --output /dev/null "http://127.0.0.1:$admin/v1/health" && break
  sleep 0.05
done

# What goes on beside the load, once in each period.
beside() {
  local round=0
  while sleep 5; do
    round=$((round + 1))
    curl --silent --fail --max-time 5 --compressed --output /dev/null "http://127.0.0.1:$admin/metrics" ||
      echo "soak.sh: scrape $round failed" >>failures.log
    if ((round % 6 == 0)); then
      sed -i "s|/changing-[0-9]*|/changing-$round|" stillgate.yaml
      mv access.log access.log.1 && kill -USR1 "$pid"
    fi
  done
}
beside 2>>beside.log & beside=$! started+=($!)

code=0
"$lab" load "http://127.0.0.1:$port/" --mix mix.yaml --rate "$rate" --poisson --duration "$time" --warm-up 30s --interval 10s \
  --connections 100 --timeout 10s --watch "$pid" --json soak.json --quiet --late-share 5% --fail-if 'errors>0' || code=$?
"$lab" report soak.json -o soak.html
python3 - "$growth_kib_max" "$growth_descriptors_max" <<'END' || code=4
import json, statistics, sys
samples = json.load(open("soak.json"))["watched"]
tenth = max(1, len(samples) // 10)
grew = False
for key, most in (("anonymous_kib", int(sys.argv[1])), ("descriptors", int(sys.argv[2]))):
    first, last = (statistics.median(sample[key] for sample in part) for part in (samples[:tenth], samples[-tenth:]))
    print(f"{key}: {first:.0f} in the first tenth of the run, {last:.0f} in the last")
    grew |= last - first > most
sys.exit(grew)
END
if ! kill -0 "$beside" || [ -s failures.log ]; then
  echo "soak.sh: what goes on beside the load failed; see $PWD/failures.log and beside.log" >&2
  code=4
fi
exit "$code"
