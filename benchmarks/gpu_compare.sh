#!/usr/bin/env bash
# Time two checkouts of abag on one machine, in turns.
#
#   benchmarks/gpu_compare.sh OUT PART BEFORE AFTER [option of bench_time_to_answer.py ...]
#
# PART is fit (a fit of a table that was not just embedded), job (embed and fit), members (heads
# that train in one step), shares (of the GPU's peak, by encoder) or tests (those marked gpu, of AFTER). BEFORE and AFTER are folders that
# hold a checkout called abag, or a dash to leave one out. Each part writes OUT/before and OUT/after. Scripts are those of the
# checkout that they time. Bytecode of abag, and of the packages if their folder is writable, is compiled first, as pip
# does when it installs, so that the first command does not pay for it.
set -euo pipefail
out=$1 part=$2 before=$3 after=$4
shift 4
unset PYTHONDONTWRITEBYTECODE
packages=${PYTHONPATH:-}

compile() { # FOLDER ...: those that are not there or not writable, and sources of other Pythons, are left as they are
    for folder in "$@"; do
        [[ ! -w $folder ]] || python3 -m compileall -q -q -j 0 -x '/\.venv/' "$folder" || true
    done
}
compile "$before/abag" "$after/abag" $(python3 -c 'import site; print(*site.getsitepackages())')

run() { # NAME FOLDER SCRIPT ARGUMENTS: run a script of a checkout
    local name=$1 folder=$2 script=$3
    shift 3
    [[ $folder != - ]] || return 0
    mkdir -p "$out/$name"
    (cd "$folder/abag/benchmarks" && PYTHONPATH=$folder:$packages python3 "$script" --out "$out/$name" "$@") \
        >"$out/$name/$part.log" 2>&1 || tail -n 15 "$out/$name/$part.log"
}

case $part in
fit)
    run before "$before" bench_time_to_answer.py --case "fit, one split" --repeats 1 "$@"
    run after "$after" bench_time_to_answer.py --case "fit, one split" --repeats 1 "$@"
    ;;
job)
    weights=(--encoders igt5 esm2-650m --random-weights)
    [[ "$*" != *--tiny* ]] || weights=()
    run after "$after" bench_time_to_answer.py --case "whole job" --repeats 0 "${weights[@]}" "$@"
    run before "$before" bench_time_to_answer.py --case "whole job" --repeats 0 "${weights[@]}" "$@"
    ;;
members)
    run before "$before" bench_members.py --parts steps fits "$@"
    run after "$after" bench_members.py --parts steps fits "$@"
    ;;
shares)
    run before "$before" bench_encoders.py --quick "$@"
    run after "$after" bench_encoders.py --quick "$@"
    ;;
tests)
    mkdir -p "$out/after"
    (cd "$after/abag" && PYTHONPATH=$after:$packages python3 -m pytest -q -p no:cacheprovider -o addopts='--import-mode=importlib --strict-markers' -m gpu \
        $(cd "$after/abag" && grep -l 'mark.gpu' tests/*.py)) \
        2>&1 | tail -n 30 | tee "$out/after/tests.log"
    ;;
esac
grep -h "^| \(case\|fit\|whole\|read\|split\|training\|clusters\|(clusters\|IMGT\|(IMGT\|baselines\|encode\|GPU\|batch\|[0-9]\)" "$out"/*/*.md 2>/dev/null || true
