#!/usr/bin/env bash
# What a first user does in the first hour, from an empty environment.
#
#   benchmarks/first_hour.sh OUT [WHEEL]
#
# Clones this checkout into OUT, installs it by README's first line, and runs ten tasks with no weights at
# hand. With a wheel, such as dist/abag-*.whl, there is no clone: the wheel is installed in a new environment in
# an empty folder, and the table is the one that abag demo writes. Prints a table: commands, how many ended with
# an error, seconds, words that were printed. OUT/N.log has the whole text of task N. Some tasks contain a mistake
# on purpose, and the command that its message proposes.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
wheel=${2:+$(realpath "$2")}
mkdir -p "$1"
out=$(cd "$1" && pwd)
export XDG_CACHE_HOME=$out/cache
unset PYTHONPATH # which may lead to another abag
commands=0 errors=0

try() { # COMMAND...: run it, with its text in the log of this task
    echo "\$ $*" >>"$log"
    "$@" >>"$log" 2>&1
    local rc=$?
    echo "[exit $rc]" >>"$log"
    commands=$((commands + 1))
    [[ $rc == 0 ]] || errors=$((errors + 1))
}

task() { # NUMBER NAME FUNCTION
    log=$out/$1.log commands=0 errors=0
    : >"$log"
    local begun=$SECONDS
    "$3"
    echo "| $1 | $2 | $commands | $errors | $((SECONDS - begun)) | $(grep -v '^WARNING: Location' "$log" | wc -w) |"
}

COMPOSITION=(--antibody-encoder composition --antigen-encoder composition)
TINY=(--antibody-encoder tiny-igt5 --antigen-encoder tiny-esm2)

install() {
    if [[ $wheel ]]; then
        mkdir -p "$out/abag"
    else
        try git clone -q "$here" "$out/abag"
    fi
    cd "$out/abag" || exit 1
    try python3 -m venv .venv
    try .venv/bin/pip install -q -c "$here/constraints.txt" "${wheel:--e.}"
    try .venv/bin/abag demo
    [[ ! $wheel ]] || { mkdir -p data && cp abag-demo/pairs.csv data/demo_pairs.csv; }
    # shellcheck disable=SC1091
    source .venv/bin/activate
}

readme() { # the lines below "Try it", as pasted
    while read -r line; do
        # shellcheck disable=SC2086
        try $line
    done < <(sed -n '/^## Try it/,/^With your own/p' "$here/README.md" | grep '^abag ')
}

spreadsheet() { # a laboratory's own sheet, with bad cells
    python - <<'PY'
import pandas as pd
demo = pd.read_csv("data/demo_pairs.csv").head(300)
sheet = pd.DataFrame({
    "Sample": [f"S{i}" for i in range(300)], "VH": demo.heavy, "VL": demo.light, "Target": "TNF",
    "Target sequence": demo.antigen, "Kd [nM]": (10 ** (9 - demo.pKd)).round(4).astype(object),
})
sheet.loc[4, "VH"], sheet.loc[20, "VL"] = "EVQL?ESGG1", "DIQMTQ*"
sheet.loc[9, "Kd [nM]"], sheet.loc[17, "Kd [nM]"] = "n.d.", ">1000"
sheet.to_csv("mine.csv", index=False)
sheet.assign(**{"Target": "IL-6"}).drop(columns="Target sequence").to_csv("names.csv", index=False)
PY
    try abag plan mine.csv
    try abag plan mine.csv --bad-rows skip --skipped bad.csv
    try abag embed mine.csv --store mine "${COMPOSITION[@]}" --bad-rows skip
    try abag fit mine.csv --store mine --run runs/mine --bad-rows skip --split random
    try abag plan names.csv
    try abag plan names.csv --antigen MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSG --bad-rows skip
}

one_pair() {
    local chains
    read -r -a chains < <(python -c "
import pandas as pd
print(*pd.read_csv('data/demo_pairs.csv').loc[3, ['heavy', 'light', 'antigen']])")
    local pair=(--heavy "${chains[0]}" --light "${chains[1]}" --antigen "${chains[2]}")
    try abag predict --run runs/first "${pair[@]}"
    try abag predict --run runs/first "${pair[@]/EVQ/EVK}"
}

interrupted() {
    try timeout 4 abag embed abag-demo/pairs.csv --store stopped "${TINY[@]}"
    try abag embed abag-demo/pairs.csv --store stopped "${TINY[@]}"
    try abag store info stopped
}

python_user() { # scripts are not beside the checkout, which Python and mypy would read instead of the package
    mkdir -p "$out/scripts"
    cat >"$out/scripts/script.py" <<'PY'
import abag
import pandas as pd

pairs = pd.read_csv("data/demo_pairs.csv").fillna("").head(3)
predictor = abag.load_predictor("runs/first")
print(predictor.predict(pairs["heavy"], pairs["light"], pairs["antigen"]))
print(abag.open_store("store").vectors("antigen", pairs["antigen"]).shape)
PY
    try python "$out/scripts/script.py"
    sed "s/predict(.*/predict(pairs))/" "$out/scripts/script.py" >"$out/scripts/wrong.py"
    try python "$out/scripts/wrong.py"
    try pip install -q -c "$here/constraints.txt" mypy pandas-stubs
    cd "$out/scripts" || exit 1
    try mypy --strict script.py
    cd "$out/abag" || exit 1
}

libraries() {
    try pip install -q -c "$here/constraints.txt" scikit-learn anndata
    try abag store export store --table data/demo_pairs.csv --to v.h5ad
    cat >"$out/scripts/sk.py" <<'PY'
import anndata
import pandas as pd
from abag.sklearn import AffinityRegressor
from sklearn.model_selection import GroupKFold, cross_val_score

print(anndata.read_h5ad("v.h5ad"))
pairs = pd.read_csv("data/demo_pairs.csv").fillna("").head(300)
head = AffinityRegressor(store="store", head="ridge")
x = pairs[["heavy", "light", "antigen"]]
print(cross_val_score(head, x, pairs["pKd"], groups=pairs["antigen"], cv=GroupKFold(3)))
PY
    try python "$out/scripts/sk.py"
}

colleague() { # a predictor on another machine
    mkdir -p "$out/other"
    cp -r shared "$out/other"
    head -4 data/demo_pairs.csv >"$out/other/new.csv"
    cd "$out/other" || exit 1
    try abag predict new.csv --run shared --out out.csv
    try abag predict new.csv --run shared --store vectors --out out.csv
    cd "$out/abag" || exit 1
}

offline() {
    try abag embed data/demo_pairs.csv --store real
    try abag doctor
    try abag sweep data/demo_pairs.csv --store store --sweep sweep --trials 2
    try pip install -q -c "$here/constraints.txt" optuna
    try abag sweep data/demo_pairs.csv --store store --sweep sweep --trials 2
}

mistakes() {
    try abag fit data/demo_pairs.csv --store store --run runs/x --hed mlp
    try abag fit data/demo_pairs.csv --store nowhere --run runs/x
    try abag fit data/demo_pairs.csv --store store --run runs/first --head ridge
    try abag predict data/demo_pairs.csv --run runs/none --out x.csv
    try abag evaluate data/demo_pairs.csv runs/first
}

echo "| | task | commands | with an error | seconds | words |"
echo "|--:|---|--:|--:|--:|--:|"
task 1 "install, demo" install
task 2 "README's lines" readme
task 3 "own sheet with bad cells" spreadsheet
task 4 "one pair" one_pair
task 5 "stop and resume" interrupted
task 6 "Python and mypy" python_user
task 7 "scikit-learn, AnnData" libraries
task 8 "a colleague's machine" colleague
task 9 "no network; a sweep" offline
task 10 "five mistakes" mistakes
