#!/bin/sh
# consumers.sh [N]: prints a configuration with N consumers (100,000) and a route that `stillgate-lab churn --reload` changes.
cat <<'END'
gateway:
  workers: 1
  listeners:
    - {address: "{address}"}
upstreams:
  - {id: u, type: roundrobin, nodes: {"{upstream}": 1}}
routes:
  - {id: changing, uri: /changing-0/v00000000, upstream_id: u}
  - {id: all, uri: /*, upstream_id: u}
consumers:
END
seq 0 $((${1:-100000} - 1)) |
  awk '{ printf "  - {username: consumer_%d, plugins: {key-auth: {key: key-of-the-consumer-%08d}}}\n", $1, $1 }'
