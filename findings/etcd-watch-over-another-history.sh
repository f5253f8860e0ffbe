#!/usr/bin/env bash
# etcd 3.4.23 (Debian's etcd-server 3.4.23-4+b4), over its JSON gateway.
#
# An etcd that is set up again with the same name, peer address and token, as after a loss of its disk or from a backup, has the
# same cluster id as before. A watch that resumes at a revision of the former history gets no error once the new history has come
# that far: it delivers only what is written later, and nothing says that the keys it has seen have other values now. A refusal,
# such as that of a revision that does not exist yet, does not name the cluster that it comes from.
#
# Seen: the same cluster_id twice; the watch from revision 4 on delivers key "c" alone, although "a" has another value at revision 2
# than the one that was read before; the answer to a read at revision 99 has no header.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${pid:-0}" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq etcd-server=3.4.23-4+b4 >/dev/null
dpkg-deb -x etcd-server_*.deb root
client=http://127.0.0.1:23790
start() {
    root/usr/bin/etcd --name one --data-dir data --initial-cluster-token t --initial-cluster one=http://127.0.0.1:23800 \
        --initial-advertise-peer-urls http://127.0.0.1:23800 --listen-peer-urls http://127.0.0.1:23800 \
        --listen-client-urls $client --advertise-client-urls $client >log 2>&1 &
    pid=$!
    for _ in $(seq 100); do
        curl -sf $client/health >/dev/null && return
        sleep 0.1
    done
    echo "etcd did not start" >&2
    exit 1
}
stop() { kill "$pid"; wait "$pid" 2>/dev/null || true; }
text() { printf %s "$1" | base64; }
put() { curl -s $client/v3/kv/put -d "{\"key\":\"$(text "$1")\",\"value\":\"$(text "$2")\"}" >/dev/null; }
cluster() { curl -s $client/v3/kv/range -d "{\"key\":\"$(text a)\"}" | grep -oE '"cluster_id":"[0-9]+"'; }

start
put a old # revision 2
put b old # revision 3
before=$(cluster)
stop
rm -rf data
start
put a new # revision 2
put b new # revision 3
put c new # revision 4
after=$(cluster)
watched=$(timeout 2 curl -sN $client/v3/watch -d "{\"create_request\":{\"key\":\"$(text a)\",\"range_end\":\"$(text z)\",\"start_revision\":4}}" || true)
refused=$(curl -s $client/v3/kv/range -d "{\"key\":\"$(text a)\",\"revision\":99}")
stop
echo "$before, then $after"
echo "$watched"
echo "$refused"
[ "$before" = "$after" ]
grep -q "\"key\":\"$(text c)\"" <<<"$watched"
! grep -qE "\"key\":\"($(text a)|$(text b))\"|canceled|error" <<<"$watched"
grep -q "future revision" <<<"$refused" && ! grep -q cluster_id <<<"$refused"
