"""Measure how long a command takes from start to answer, stage by stage, with cold and warm caches.

    python benchmarks/bench_time_to_answer.py --out DIR --table skempi.csv       # every case
    python benchmarks/bench_time_to_answer.py --out DIR --case "fit, one split"  # some
    python benchmarks/bench_time_to_answer.py --out DIR --case "whole job" --encoders igt5 esm2-650m --random-weights
    python benchmarks/bench_time_to_answer.py --out DIR --tiny                   # seconds

Draws --pairs, --antibodies and --antigens, whose chains are random, and for the cases of fit a store of
random vectors with the widths of the default encoders. --table adds the cases of a real table, with --store or
with random vectors of --widths. The cases of embed use --encoders and stores of their own. Each command runs in a
process of its own: first with empty caches (clusters, compiled kernels, fonts), then --repeats times with those
that the first run left; of these the fastest counts. --random-weights saves checkpoints of the encoders' shapes.

The stages of a command are functions in STAGES; the seconds of a stage exclude those of the stages inside it. Stages
in brackets ran in other threads meanwhile. Where other processes use the cores, the time in which the main thread
waited for a core is theirs. A case of two commands names the command of each stage. The first encoder is ready when
its weights are on the device. The file is written again after every case.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from pkgutil import resolve_name
from shutil import which

STAGES = {
    "embed": {
        "read table": "abag.embed.embed:_read",
        "identify encoders": "abag.embed.embed:identify_for",
        "distinct sequences": "abag.embed.job:KindJob.survey",
        "start the device": "abag.embed.embed:_announce",
        "look up": "abag.embed.job:KindJob.look_up",
        "load encoders": "abag.embed.job:KindJob.load",
        "encode and commit": "abag.embed.encode:encode_share",
    },
    "fit": {
        "read table and vectors": "abag.head.fit:read_inputs",
        "split": "abag.head.fit:split_inputs",
        "clusters of antigens": "abag.head.regimes.relations:antigen_clusters",
        "clusters of antibodies": "abag.head.regimes.relations:antibody_clusters",
        "IMGT numbering": "abag.embed.tables.numbering:number_antibodies",
    },
}
"""By command: the name of a stage and the function that it is, named where it is called."""
AFTER = {
    "split": {
        "prepare the step": "abag.head.training.stack:TrainingStep.__init__",
        "training": "abag.head.training.networks:train",
        "baselines": "abag.head.fit:predict_baselines",
        "models in closed form": "abag.head.fit:fit_fold",
        "predictor": "abag.head.fit:save_predictor",
        "scores and files": "abag.head.fit:write_results",
        "report": "abag.head.runs.report:write_report",
    }
}
"""Stages of modules that are first imported in the stage that is the key."""
LOADING = ("load encoders",)
READY = "(from start to first encoder ready)"
_EMBED = [
    "embed",
    "{table}",
    "--antibody-encoder",
    "{antibody_encoder}",
    "--antigen-encoder",
    "{antigen_encoder}",
]
_FIT = ["fit", "{table}", "--store", "{store}", "--run", "{out}"]
_FIRST = [*_EMBED, "--store", "{out}-store"]
_THEN = ["fit", "{table}", "--store", "{out}-store", "--run", "{out}", "--split", "random"]
CASES = {
    "table: fit, one split": ("given", [[*_FIT, "--split", "random"]], 8),
    "table: fit, default split": ("given", [_FIT], 45),
    "fit, one split": ("drawn", [[*_FIT, "--split", "random"]], 20),
    "fit, default split": ("drawn", [_FIT], 45),
    "embed, first": ("drawn", [[*_EMBED, "--store", "{out}"]], None),
    "embed, nothing missing": ("drawn", [[*_EMBED, "--store", "{embedded}"]], 4),
    "whole job": ("drawn", [_FIRST, _THEN], 120),
    "whole job, unprepared": ("drawn", [[*_FIRST, "--no-prepare-fit"], _THEN], None),
}
"""By name: the table, the commands, and the seconds aimed at with cold caches."""
CACHES = {"XDG_CACHE_HOME": "user", "MPLCONFIGDIR": "fonts",
          "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}  # fmt: skip


class GpuUse:
    """Share of the time in which nvidia-smi sees a kernel run, sampled ten times per second."""

    def __enter__(self):
        query = [
            "nvidia-smi",
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
            "-lms",
            "100",
        ]
        self.child = (
            subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            if which("nvidia-smi")
            else None
        )
        return self

    def __exit__(self, *_):
        self.percent = None
        if self.child:
            self.child.terminate()
            samples = [float(line) for line in self.child.communicate()[0].split()]
            self.percent = sum(samples) / max(1, len(samples))


class Clock:
    """Seconds of each stage without those of the stages inside it."""

    def __init__(self):
        self.seconds = {}
        self.ended = {}
        self.thread = threading.local()

    def wrap(self, stage, path):
        """Time every call of a function."""
        module, _, name = path.partition(":")
        owner = resolve_name(module)
        *parents, name = name.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            inner = self.thread.__dict__.setdefault("inner", [])
            inner.append(0.0)
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - begun
                beside = threading.current_thread() is not threading.main_thread()
                shown = f"({stage})" if beside else stage
                self.ended.setdefault(stage, time.time())
                self.seconds[shown] = self.seconds.get(shown, 0.0) + took - inner.pop()
                if inner:
                    inner[-1] += took
                for later, place in AFTER.pop(stage, {}).items():
                    self.wrap(later, place)

        setattr(owner, name, timed)


def run_timed(started, arguments):
    """Run a command in this process; print the seconds of its stages and the peak of its memory."""
    from abag.cli import main

    clock = Clock()
    for stage, path in STAGES[arguments[0]].items():
        clock.wrap(stage, path)
    imported = time.time()
    main(arguments, standalone_mode=False)
    whole_s = time.time() - started
    clock.seconds["imports"] = imported - started
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    waited_s = sum(s for stage, s in clock.seconds.items() if not stage.startswith("("))
    found = {"whole": whole_s, **clock.seconds, "rest": whole_s - waited_s, **cpu_seconds()}
    ready = [clock.ended[stage] for stage in LOADING if stage in clock.ended]
    if ready:
        found[READY] = min(ready) - started
    print("\n" + json.dumps({"seconds": found, "peak_mib": int(peak) / 1024}))


def cpu_seconds():
    """Return the CPU time of this process, and on Linux how long its main thread waited for a core."""
    found = {"(CPU time)": time.process_time()}
    schedule = Path(f"/proc/self/task/{os.getpid()}/schedstat")
    if schedule.exists():
        found["(waiting for a core)"] = int(schedule.read_text().split()[1]) / 1e9
    return found


def measure(case, places, caches, options):
    """Run a case in a child with these caches; return what `run_timed` prints."""
    for name, folder in CACHES.items():
        (caches / folder).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(caches / folder)
    total = {"seconds": {}, "peak_mib": 0}
    with tempfile.TemporaryDirectory() as out:
        for command in CASES[case][1]:
            texts = [text.format(**{"out": f"{out}/run", **places}) for text in command]
            started = time.time()
            child = [sys.executable, __file__, "--timed", str(started), *texts, *options]
            with GpuUse() as use:
                done = subprocess.run(child, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            found["seconds"]["exit"] = time.time() - started - found["seconds"]["whole"]
            found["seconds"]["whole"] += found["seconds"]["exit"]
            total["peak_mib"] = max(total["peak_mib"], found["peak_mib"])
            if use.percent is not None:
                busy = use.percent / 100 * found["seconds"]["whole"]
                total["gpu_s"] = total.get("gpu_s", 0.0) + busy
            whole_s = total["seconds"].get("whole", 0.0) + found["seconds"]["whole"]
            several = f"{command[0]}: " if len(CASES[case][1]) > 1 else ""
            named = {several + stage: seconds for stage, seconds in found["seconds"].items()}
            total["seconds"] |= named | {"whole": whole_s}
    return total


def make_inputs(folder, args):
    """Draw what the cases need and was not given: tables, and stores of random vectors."""
    import bench_rows

    antibody_encoder, antigen_encoder = args.encoders
    if args.random_weights:
        from shapes import SHAPES

        from abag.embed.encoders.checkpoints import save_random_checkpoint

        antibody_encoder, antigen_encoder = (
            save_random_checkpoint(folder / name, SHAPES[name], seed)
            for seed, name in enumerate(args.encoders)
        )
    encoders = {"antibody_encoder": antibody_encoder, "antigen_encoder": antigen_encoder}
    drawn = {"table": folder / "pairs.csv", "store": folder / "store",
             "embedded": folder / "embedded"}  # fmt: skip
    given = {"table": args.table, "store": args.store or folder / "given"}
    used = {CASES[case][0] for case in args.case}
    if "drawn" in used:
        pairs = bench_rows.make_table(args.pairs, args.antibodies, args.antigens)
        pairs.to_csv(drawn["table"], index=False)
        if any("{store}" in command for case in args.case for command in CASES[case][1]):
            bench_rows.fill(drawn["store"], drawn["table"])
    if "given" in used and args.store is None:
        bench_rows.WIDTHS = dict(zip(("antibody", "antigen"), args.widths, strict=True))
        bench_rows.fill(given["store"], given["table"])
    return {"drawn": drawn | encoders, "given": given}


def summarise(found):
    """Return a table of all cases."""
    lines = ["| case | aim, cold | cold | warm | peak memory |", "|---|---|---|---|---|"]
    for case, runs in found.items():
        aim = CASES[case][2]
        wholes = [f"{one['seconds']['whole']:.1f} s" for one in runs.values()]
        seconds = " | ".join([*wholes, "-"][:2])
        peak = max(one["peak_mib"] for one in runs.values())
        lines.append(f"| {case} | {f'{aim} s' if aim else '-'} | {seconds} | {peak:,.0f} MiB |")
    return [*lines, ""]


def describe(found):
    """Return a table of stages for one case; `found` has the cold and perhaps a warm run."""
    stages = dict.fromkeys(stage for one in found.values() for stage in one["seconds"])
    lines = [f"| stage | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for stage in stages:
        values = [one["seconds"].get(stage, 0.0) for one in found.values()]
        lines.append(f"| {stage} | {' | '.join(f'{value:.2f} s' for value in values)} |")
    if "gpu_s" in found["cold"]:
        shares = [one["gpu_s"] / one["seconds"]["whole"] for one in found.values()]
        lines.append(f"| GPU busy | {' | '.join(f'{share:.0%}' for share in shares)} |")
    peaks = [f"{one['peak_mib']:,.0f} MiB" for one in found.values()]
    return [*lines, f"| peak memory | {' | '.join(peaks)} |", ""]


def hardware():
    """Name the GPU, or the CPU and its cores."""
    import torch

    cores = len(os.sched_getaffinity(0))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine() + " CPU"
    return f"{gpu}, {cores} cores, torch {torch.__version__}, Python {platform.python_version()}"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--widths", type=int, nargs=2, default=[512, 256])
    parser.add_argument("--pairs", type=int, default=160_000)
    parser.add_argument("--antibodies", type=int, default=110_000)
    parser.add_argument("--antigens", type=int, default=3_000)
    parser.add_argument("--encoders", nargs=2, default=["composition"] * 2)
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--case", choices=CASES, nargs="+")
    parser.add_argument("--repeats", type=int, help="with warm caches; by default 2")
    parser.add_argument("--options", default="", help="Further options of the commands.")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    if args.tiny:
        args.pairs = 120
        args.antibodies = 60
        args.antigens = 8
    if args.repeats is None:
        args.repeats = 1 if args.tiny else 2
    have = {"drawn"} | ({"given"} if args.table else set())
    args.case = args.case or [case for case, (table, *_) in CASES.items() if table in have]
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        tables = make_inputs(Path(scratch), args)
        for case in args.case:
            places = tables[CASES[case][0]]
            options = args.options.split() + ["--device", "cpu"] * args.tiny
            options += ["--epochs", "2"] * (args.tiny and "fit" in case)
            if case == "embed, nothing missing":
                filled = {**places, "out": places["embedded"]}
                measure("embed, first", filled, Path(scratch, "filling"), options)
            caches = Path(scratch, case)
            cold = measure(case, places, caches, options)
            warm = [measure(case, places, caches, options) for _ in range(args.repeats)]
            found[case] = {"cold": cold}
            if warm:
                found[case]["warm"] = min(warm, key=lambda one: one["seconds"]["whole"])
            print(case, json.dumps(found[case]), file=sys.stderr, flush=True)
            write(args, found, argv or sys.argv[1:])


def write(args, found, argv):
    """Write what has been measured so far."""
    lines = [
        f"# Time to answer, {date.today()}", "",
        f"{hardware()}; {args.pairs:,} drawn pairs{f', {args.table.name}' if args.table else ''};"
        f" `python benchmarks/bench_time_to_answer.py {' '.join(argv)}`", "",
        *summarise(found),
    ]  # fmt: skip
    for case, runs in found.items():
        lines += [f"## abag {case}", "", *describe(runs)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "time_to_answer.md").write_text("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        run_timed(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
