#!/bin/bash
# CPU, memory and descriptors of a gateway with one worker at fixed rates: the figures of docs/operating.md.
#
#   bench/capacity.sh GATEWAY LAB [SECONDS]
#
# The gateway runs on CPU 0, load and node on CPU 1. An exit code of 3 means that the lab calls the run void.
set -u
SG=$(realpath "$1"); LAB=$(realpath "$2"); S=${3:-10}
D=$(mktemp -d); cd "$D"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k.pem -out c.pem -days 30 \
  -subj /CN=localhost -addext subjectAltName=DNS:localhost 2> openssl.log
cat > cap.yaml <<Y
gateway:
  workers: 1
  listeners: [{address: "127.0.0.1:21510"}, {address: "127.0.0.1:21511", tls: true}]
  access_log: {path: $D/access.log, format: json}
  admin: {address: "127.0.0.1:21512"}
upstreams: [{id: u, nodes: {"127.0.0.1:21500": 1}}]
routes:
  - {id: plain, uri: /plain, upstream_id: u}
  - id: auth
    uri: /auth
    upstream_id: u
    plugins: {key-auth: {}, limit-count: {count: 1000000, time_window: 1, key: consumer_name}}
consumers: [{username: load, plugins: {key-auth: {key: load-key}}}]
ssls: [{id: s, snis: [localhost], cert: $D/c.pem, key: $D/k.pem}]
Y
: > access.log
$LAB respond --address 127.0.0.1:21500 --cpu 1 > respond.log 2>&1 & R=$!
taskset -c 0 $SG run --config cap.yaml > gw.log 2>&1 & G=$!
trap 'kill $G $R; rm -rf "$D"' EXIT
sleep 2
ticks() { awk '{print $14+$15}' /proc/$G/stat; }
mem() { awk '/VmRSS|RssAnon|RssFile|RssShmem/{printf "%s%d ", $1, $2/1024} END{print "MiB"}' /proc/$G/status; }
echo "idle: $(mem) fds $(ls /proc/$G/fd | wc -l)"; uptime
one() { # name rate args...
  local n=$1 r=$2; shift 2; local a=$(ticks)
  $LAB load "$@" --rate $r -d ${S}s -t 1 --cpus 1 -q --json $n-$r.json > $n-$r.txt 2>&1; local rc=$? b=$(ticks)
  python3 - "$n" "$r" $((b-a)) $S $n-$r.txt $rc <<'P'
import sys,re
n,r,t,s,f,rc=sys.argv[1:]; t=int(t)/100; s=float(s)
txt=open(f).read(); m=re.search(r'(\d+) requests in ([\d.]+)s',txt); done=int(m[1]) if m else 0
lat=dict(re.findall(r'(50\.000|99\.000|99\.900)%\s+([\d.]+\w+)',txt.split('Uncorrected')[0]))
print(f"{n:10} {r:>4}/s  cpu {100*t/s:5.1f}%  {1e6*t/max(done,1):6.2f} us/request  {done} done  p50 {lat.get('50.000')} p99 {lat.get('99.000')} p99.9 {lat.get('99.900')} exit {rc}")
P
  echo "           $(mem) fds $(ls /proc/$G/fd | wc -l)"
}
cat > idle.py <<'P'
import socket,sys,time,ssl
port,n,tls=int(sys.argv[1]),int(sys.argv[2]),len(sys.argv)>3
c=[]
for i in range(n):
    s=socket.create_connection(("127.0.0.1",port))
    if tls:
        x=ssl.create_default_context(cafile="c.pem"); s=x.wrap_socket(s,server_hostname="localhost")
    s.sendall(b"GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n"); s.recv(4096); c.append(s)
print("open",flush=True); sys.stdin.read()
P
for t in "" tls; do
  p=21510; [ -n "$t" ] && p=21511
  sleep 3; a=$(awk '/VmRSS/{print $2}' /proc/$G/status); f=$(ls /proc/$G/fd | wc -l)
  mkfifo fifo 2>/dev/null; python3 idle.py $p 5000 $t < fifo > idle.log & exec 9>fifo
  until grep -q open idle.log 2>/dev/null || ! kill -0 $!; do sleep 0.2; done; sleep 3
  b=$(awk '/VmRSS/{print $2}' /proc/$G/status)
  echo "5000 idle connections $t: $(( (b-a)*1024/5000 )) bytes each, fds $f -> $(ls /proc/$G/fd | wc -l)"; exec 9>&-; wait %3 2>/dev/null; sleep 1; rm -f idle.log fifo
done
for r in 1k 5k 10k; do
  one plain $r http://127.0.0.1:21510/plain -c 50
  one auth $r http://127.0.0.1:21510/auth -c 50 -H "apikey: load-key"
  one tls $r https://localhost:21511/plain -k -c 50
  one h2 $r https://localhost:21511/plain -k --http2 -c 8 --streams 32
done
uptime
