#!/bin/sh
# How often `stillgate-lab bisect` is right on a real repository: 64 commits, one 3% slower, five around it that do not
# build, and measurements that scatter by 3%. Usage: planted_bisections.sh LAB [RUNS [STEP [FIRST]]]; STEP 0 plants nothing,
# FIRST is the number of the first run (1), for parts of a series.
#
# Prints for each run its verdict, whether it is right, and its measurements. Nothing is run again, whatever comes out.
set -eu
lab=$(realpath "$1") runs=${2:-50} step=${3:-0.03} first=${4:-1}
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder"
git init --quiet --initial-branch main repository
for run in $(seq "$first" $((first + runs - 1))); do
    culprit=$((1 + run * 37 % 63))
    for number in $(seq 0 63); do
        value=$(awk -v n="$number" -v c="$culprit" -v s="$step" 'BEGIN { print 100 * (n < c ? 1 : 1 + s) }')
        distance=$((number > culprit ? number - culprit : culprit - number))
        # Two before it and three behind, but for the ends.
        broken=no
        [ "$number" -gt 0 ] && [ "$number" -lt 63 ] && [ "$distance" -gt 0 ] && [ "$distance" -le 3 ] &&
            [ "$((number - culprit))" -ne -3 ] && broken=yes
        printf 'commit refs/heads/main\nmark :%s\ncommitter A <a@example.org> %s +0000\ndata 2\nc\n' $((number + 1)) $((1700000000 + number))
        [ "$number" -gt 0 ] && printf 'from :%s\n' "$number"
        printf 'M 100644 inline value\ndata %s\n%s\nM 100644 inline broken\ndata %s\n%s\n' "${#value}" "$value" "${#broken}" "$broken"
    done >stream
    git -C repository fast-import --quiet --force --export-marks=marks <stream
    name() { sed -n "s/^:$1 //p" repository/marks; }
    rm -f count result.json
    COUNT=$folder/count SEED=$run "$lab" bisect --repo repository --cache cache --good "$(name 1)" --bad "$(name 64)" \
        --build 'test "$(cat broken)" = no' --json result.json --measure '
            n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n >"$COUNT"
            awk -v n=$n -v run="$SEED" -v v=$(cat value) "BEGIN { srand(n * 7919 + run * 104729); for (i = 0; i < 9; i++) rand()
                print v * exp(0.03 * sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand())) }"' >said 2>/dev/null || true
    verdict=$(sed -n 's/^ *"verdict": "\(.*\)",*$/\1/p' result.json)
    # The range that holds the culprit is as right as can be: its neighbours do not build.
    if [ "$step" = 0 ]; then
        [ "$verdict" = none ] && right=right || right=wrong
    else
        grep -A 3 '"changes"' result.json | grep -q "$(name $((culprit + 1)))" && right=right || right=wrong
    fi
    echo "$run $verdict $right $(sed -n 's/^ *"measurements": \([0-9]*\),*$/\1/p' result.json)"
done | tee all
awk '{ n[NR] = $4; right += $3 == "right"; found[$2]++ } END {
    for (v in found) printf "%s %d, ", v, found[v]
    for (i = 1; i <= NR; i++) for (j = i + 1; j <= NR; j++) if (n[j] < n[i]) { t = n[i]; n[i] = n[j]; n[j] = t }
    printf "right %d of %d, measurements: median %d, at most %d\n", right, NR, n[int((NR + 1) / 2)], n[NR] }' all
