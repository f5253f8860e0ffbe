#!/bin/bash
# generator.sh LAB [ROUNDS [SECONDS [CONNECTIONS]]]: CPU of a request in the load generator beside wrk.
#
# Both load the same bare responder, on CPU 0, with one thread on CPU 1 in a closed loop, in turn. The CPU time is that of the
# whole process, so starting up counts as well. Medians of the rounds.
set -eu
lab=$1 rounds=${2:-5} seconds=${3:-3} connections=${4:-50}
folder=$(mktemp -d)
trap 'kill "$responder" 2>/dev/null; rm -r "$folder"' EXIT
"$lab" respond --cpu 0 > "$folder/address" &
responder=$!
until grep -q 'listening on' "$folder/address"; do sleep 0.05; done
url=http://$(sed -n 's/^listening on //p' "$folder/address")/
TIMEFORMAT='%U %S'

# Prints the µs of CPU for a request, and the requests per second, of the command that prints its number of requests.
timed() {
  { time taskset --cpu-list 1 "$@" > "$folder/out"; } 2> "$folder/time"
}
line() { # NAME REQUESTS
  awk -v requests="$2" -v seconds="$seconds" -v name="$1" \
    'END { printf "%s %.2f %.0f\n", name, ($1 + $2) * 1e6 / requests, requests / seconds }' "$folder/time"
}
for _ in $(seq "$rounds"); do
  timed "$lab" load "$url" --quiet --json - --cpus 1 --connections "$connections" --duration "${seconds}s"
  line stillgate-lab "$(sed -n 's/^ *"requests": \([0-9][0-9]*\).*/\1/p' "$folder/out" | head -1)"
  timed wrk --threads 1 --connections "$connections" --duration "${seconds}s" "$url"
  line wrk "$(sed -n 's/^ *\([0-9]*\) requests in .*/\1/p' "$folder/out")"
done | tee "$folder/lines"
for name in stillgate-lab wrk; do
  median() { sed -n "s/^$name //p" "$folder/lines" | cut -d ' ' -f "$1" | sort -n | sed -n "$(((rounds + 1) / 2))p"; }
  echo "$name: $(median 1) us of CPU a request, $(median 2) requests/s (medians of $rounds)"
done
