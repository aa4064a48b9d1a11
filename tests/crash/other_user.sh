#!/usr/bin/env bash
# Commands of a user with few rights, on files that belong to root.
#
#   tests/crash/other_user.sh FOLDER ABAG
#
# Needs root, and an ABAG whose Python others may run. Prints the command, exit status and last line of each, which
# is read by eye: 0, or 1 and a line that says what to do; only click's refusal of an unreadable argument is 2.
set -uo pipefail
abag=$(realpath "$2")
mkdir -p "$1" && cd "$1" || exit 1
here=$PWD
C=(--antibody-encoder composition --antigen-encoder composition)
R=(--head ridge --split random)
export OMP_NUM_THREADS=1

as() { # [NAME=VALUE ...] abag ARGUMENTS: as nobody
    echo "\$ $*" | cut -c1-160
    setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$here/home" "${@/#abag/$abag}" >log 2>&1
    echo "[$?] $(tail -n 1 log | cut -c1-300)"
}

own() { # NAME FROM: a copy that belongs to nobody
    rm -rf "w/$1" && cp -r "$2" "w/$1" && chown -R 65534:65534 "w/$1"
}

each_read_only() { # what root owns may be read, and nothing be written beside it
    as abag embed t.csv --store store "${C[@]}"
    as abag fit t.csv --store store --run run "${R[@]}"
    for command in "fit t.csv --store store --run new" "embed new.csv --store store ${C[*]}" "report run" \
        "predict new.csv --run run --out new" "scan run --parents new.csv --limit 1 --region cdrh3 --out w/scan.csv" \
        "share run --to new" "store merge store --out new" "store export store --table t.csv --to new.npz" \
        "sweep t.csv --store store --sweep new" "evaluate --run run" "evaluate new.csv --run run" "runs ." \
        "predict new.csv --run run --store w/own --out w/new.csv" "rank w/new.csv --batch 5 --out w/order.csv" \
        "rank w/new.csv --batch 5 --out order.csv" "store verify store"; do
        # shellcheck disable=SC2086
        as abag $command
    done
}

without_rights() {
    for part in . antibody-composition-* antibody-composition-*/*.h5 abag-store.json antibody-composition-*/encoder.json; do
        own s store
        # shellcheck disable=SC2086
        chmod 000 w/s/$part
        as abag embed t.csv --store w/s "${C[@]}"
        as abag store info w/s
        chmod -R u+rwX w/s
    done
    for part in . predictor predictor/weights.safetensors predictor/predictor.json config.json summary.json predictions.parquet; do
        own r run
        chmod 000 "w/r/$part"
        for command in "predict t.csv --run w/r --out w/p.csv --force" "evaluate --run w/r" "runs w/r"; do
            # shellcheck disable=SC2086
            as abag $command
        done
        chmod -R u+rwX w/r
    done
}

homes_and_places() {
    for place in HOME=/nonexistent HOME=/root "HOME=$here/ro TMPDIR=$here/ro" TMPDIR=/nonexistent XDG_CACHE_HOME=/proc/x; do
        rm -rf w/h w/hr
        # shellcheck disable=SC2086
        as $place abag embed t.csv --store w/h "${C[@]}"
        # shellcheck disable=SC2086
        as $place abag fit t.csv --store store --run w/hr "${R[@]}"
    done
    ln -sf "$here/w/real" w/link
    for place in w/link 'w/a b ü 中/' '~/st' "w/$(printf 'a%.0s' {1..250})" "w/$(printf 'ü%.0s' {1..124})"; do
        as abag embed t.csv --store "$place" "${C[@]}"
        as abag fit t.csv --store "$place" --run "${place%/}.r" "${R[@]}"
    done
    for size in 40; do # KiB of a file
        (ulimit -f $size && as abag embed t.csv --store w/small$size "${C[@]}")
        (ulimit -f $size && as abag fit t.csv --store store --run w/small$size.r "${R[@]}")
        as abag embed t.csv --store w/small$size "${C[@]}"
        as abag fit t.csv --store store --run w/small$size.r "${R[@]}"
    done
    for umask in 077 000; do
        (umask $umask && as abag fit t.csv --store store --run "w/umask$umask" "${R[@]}")
        find "w/umask$umask" -printf '%y %m\n' | sort | uniq -c
    done
}

install -d -o 65534 -g 65534 home w
install -d -m 555 ro
"$abag" demo >log 2>&1 || exit 1
head -n 100 abag-demo/pairs.csv >t.csv
sed -n '1p;102,140p' abag-demo/pairs.csv >new.csv
"$abag" embed t.csv --store store "${C[@]}" >log 2>&1 && "$abag" fit t.csv --store store --run run "${R[@]}" >log 2>&1 || exit 1
each_read_only
without_rights
homes_and_places
