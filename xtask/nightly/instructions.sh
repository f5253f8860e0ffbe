#!/bin/sh
# instructions.sh PROGRAM N CASE: prints the instructions of one operation, by callgrind.
#
# PROGRAM does an operation N times. The difference of runs with 2N and with N is divided by N, so start-up cancels out. Exit code
# 125 says that a commit does not have the operation.
program=$1 count=$2 case=$3
[ -x "$program" ] || exit 125
# A program without cases does the same whatever it is asked for: the first form of the router's.
if "$program" 1 no-such-case 2>/dev/null && [ "$case" != uris ]; then exit 125; fi
"$program" 1 "$case" 2>/dev/null || exit 125
counted() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$case" 2>&1 | sed -n 's/.*Collected : //p'
}
once=$(counted "$count")
twice=$(counted $((2 * count)))
awk -v once="$once" -v twice="$twice" -v count="$count" 'BEGIN { print (twice - once) / count }'
