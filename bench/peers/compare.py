#!/usr/bin/env python3
"""Times the same operations through rankloom and through what one would use instead, interleaved, and prints one table.

compare.py [--build DIR] [--rounds N] [--seconds S] [--ops a,b] [--shapes 4x1,64x1024] [--json FILE] [--plot FILE] [--table FILE]
compare.py --scale [--json FILE] [--plot FILE] [--table FILE]      rankloom alone: what a rank costs in worlds of up to a million

A peer that is not installed is left out, and said so. Every figure is the median over the rounds of the time of one operation
over all ranks; each round asks every program once, one after another. A ~ marks a figure whose rounds differ by more than 30 %.
A floor is what the operation's bytes take at the speed at which all cores copy, and the cheapest way for all ranks to have had
their turn: one switch to each fiber; or one meeting of threads that count themselves and give their core away until all have come.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "barrier", "world"]
WITHOUT_DATA = {"barrier", "world"}
# These start once a process, so their set-up and tear-down is that of the processes, seen from outside.
ONE_WORLD_A_PROCESS = {"Open MPI", "MPICH", "SMPI", "gloo spawned"}
FLOORS = {"fibers": "floor of fibers", "threads": "floor of threads"}
FLOOR_LINES = {FLOORS["fibers"]: "--", FLOORS["threads"]: ":"}
# A figure whose rounds differ by more than this part of their median is marked with ~.
NOISE = 0.3
SHAPES = [(4, 1), (4, 1024), (16, 1024), (64, 1024), (1024, 1024), (4, 1048576)]
# How many ranks a peer is asked for at most: beyond these one operation takes seconds here, or the peer refuses.
MOST_RANKS = {"Open MPI": 64, "MPICH": 64, "SMPI": 1024, "gloo": 16, "gloo spawned": 16, "torch threaded": 64}


def mpi(build, suffix, flags):
    """A command that runs mpi_peer under this MPI, or None."""
    compiler, launcher = shutil.which(f"mpicxx.{suffix}"), shutil.which(f"mpirun.{suffix}")
    if compiler is None or launcher is None:
        return None
    program = build / f"mpi_peer_{suffix}"
    subprocess.run([compiler, "-O2", "-std=c++17", "-I", HERE.parent.parent, HERE / "mpi_peer.cc", "-o", program], check=True)
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return lambda op, ranks, count, seconds: (
        [launcher, "-n", str(ranks), *flags, program, op, str(ranks), str(count), str(seconds)], environment)


def smpi(build):
    if shutil.which("smpicxx") is None or shutil.which("smpirun") is None:
        return None
    program = build / "mpi_peer_smpi"
    subprocess.run(["smpicxx", "-O2", "-std=c++17", "-I", HERE.parent.parent, HERE / "mpi_peer.cc", "-o", program], check=True)
    platform_file = build / "smpi_platform.xml"
    hosts = 1024
    platform_file.write_text(f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><cluster id="c" prefix="h" suffix="" radical="0-{hosts - 1}" speed="1Gf" bw="125MBps" lat="50us"/></platform>
""")
    host_file = build / "smpi_hosts"
    host_file.write_text("".join(f"h{i}\n" for i in range(hosts)))

    def command(op, ranks, count, seconds):
        return (["smpirun", "-n", str(ranks), "-platform", platform_file, "-hostfile", host_file, "--cfg=smpi/simulate-computation:no",
                 "--cfg=smpi/display-timing:no", "--log=root.thres:critical", program, op, str(ranks), str(count), str(seconds)], {})

    return command


def torch_peer(kind, python):
    if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode != 0:
        return None
    return lambda op, ranks, count, seconds: (
        [python, HERE / "torch_peer.py", kind, op, str(ranks), str(count), str(seconds)], {})


def rankloom(program, engine):
    return lambda op, ranks, count, seconds: ([program, engine, op, str(ranks), str(count), str(seconds)], {})


def ask(command, timeout, whole_process=False):
    """Nanoseconds of one operation, or of the whole process, or None if the program failed or took too long."""
    arguments, environment = command
    begin = time.perf_counter()
    process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, **environment}, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:  # too slow, or this script is being stopped
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if whole_process:
        return (time.perf_counter() - begin) * 1e9 if process.returncode == 0 else None
    for line in output.splitlines():
        if line.startswith("ns_per_op "):
            return float(line.split()[1])
    return None


def machine():
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f} at the start"


def time_text(ns):
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def markdown(head, rows, left=2):
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells(row, names):
    ns = row["ns"]
    best = min((t for n, t in ns.items() if not n.startswith("rankloom") and n not in FLOORS.values()), default=None)

    def ratio(a, b):
        return f"{a / b:.3g}" if a and b else "-"

    fibers, threads = ns.get("rankloom fibers"), ns.get("rankloom threads")
    return [row["op"], f"{row['ranks']} x {row['count']}", *(time_text(ns.get(n)) + " ~" * (n in row["noisy"]) for n in names),
            ratio(best, fibers), ratio(best, threads), ratio(fibers, ns.get(FLOORS["fibers"])), ratio(threads, ns.get(FLOORS["threads"]))]


def table(rows, names):
    head = ["operation", "ranks x elements", *names, "best peer / fibers", "best peer / threads", "fibers / floor", "threads / floor"]
    return markdown(head, [cells(row, names) for row in rows])


def log_plots(path, panels):
    """Panels side by side: (title, x label, y label, {line: [(x, y)]})."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 5))
    for axis, (title, x_label, y_label, lines) in zip(axes, panels, strict=True):
        for name, points in lines.items():
            if points:
                style = {"color": "black", "linestyle": FLOOR_LINES[name]} if name in FLOOR_LINES else {"marker": "o"}
                axis.plot(*zip(*sorted(points), strict=True), label=name, **style)
        axis.set(xscale="log", yscale="log", title=title, xlabel=x_label, ylabel=y_label)
        axis.legend(fontsize=8, framealpha=0.6)
        axis.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def plot(rows, names, path):
    def lines(x, fits):
        return {n: [(r[x], r["ns"][n] / 1e3) for r in rows if r["op"] == "all_reduce" and fits(r) and r["ns"].get(n)] for n in names}

    log_plots(path, [("all_reduce of 1,024 float32", "ranks", "us a call", lines("ranks", lambda r: r["count"] == 1024)),
                     ("all_reduce over 4 ranks", "float32 elements", "us a call", lines("count", lambda r: r["ranks"] == 4))])


def scale_plot(rows, path):
    """rows: (operation, ranks, benchmark)"""
    ops = list(dict.fromkeys(op for op, _, _ in rows))

    def line(op, key):
        return [(int(ranks), b[key]) for o, ranks, b in rows if o == op]

    # Setting up differs by no more than the memory that the operation's buffers need.
    times = {f"{op}, a round": line(op, "round_ns") for op in ops} | {f"{ops[0]}, set-up": line(ops[0], "set_up_ns")}
    log_plots(path, [("time", "ranks", "ns a rank", times), ("memory", "ranks", "KiB a rank", {op: line(op, "kib") for op in ops})])


def scale(arguments):
    """The benchmarks scale/operation/ranks, as a table and a plot."""
    program = arguments.build / "bench" / "rankloom_bench"
    names = subprocess.run([program, "--benchmark_list_tests", "--filter", "^scale/"], check=True, capture_output=True, text=True).stdout
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names.split():
            # A process each: the next world would use the fibers of the one before.
            subprocess.run([program, "--filter", f"^{name}$", "--json", f"{folder}/scale.json"], check=True, stdout=subprocess.DEVNULL)
            found += json.loads(pathlib.Path(folder, "scale.json").read_text())["benchmarks"]
    rows = [(*b["name"].split("/")[1:], b) for b in found if "round_ns" in b]
    text = markdown(["operation", "ranks", "a round", "a rank and round", "set-up a rank", "tear-down a rank", "memory a rank"],
                    [[op, ranks, time_text(b["ns_per_op"]), time_text(b["round_ns"]), time_text(b["set_up_ns"]),
                      time_text(b["tear_down_ns"]), f"{b['kib']:.1f} KiB"] for op, ranks, b in rows])
    print(text)
    if arguments.plot:
        scale_plot(rows, arguments.plot)
    return text, found


def peers(arguments):
    """Every operation and shape through everybody, as a table and a plot."""
    own = arguments.build / "bench" / "peers" / "rankloom_peer"
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        candidates = {
            "rankloom fibers": rankloom(own, "fibers"),
            "rankloom threads": rankloom(own, "threads"),
            "Open MPI": mpi(build, "openmpi", ["--oversubscribe", "--mca", "btl", "self,vader"]),
            "MPICH": mpi(build, "mpich", []),
            "SMPI": smpi(build),
            "torch threaded": torch_peer("threaded", arguments.python),
            "gloo": torch_peer("gloo", arguments.python),
            "gloo spawned": torch_peer("spawned", arguments.python),
            **{floor: rankloom(own, f"{engine.removesuffix('s')}-floor") for engine, floor in FLOORS.items()},
        }
        names = [n for n, c in candidates.items() if c is not None]
        for name, command in candidates.items():
            if command is None:
                print(f"{name}: not installed, left out", flush=True)
        rows = []
        for op in arguments.ops:
            for ranks, count in sorted({(r, 1) for r, _ in arguments.shapes}) if op in WITHOUT_DATA else arguments.shapes:
                asked = [n for n in names if ranks <= MOST_RANKS.get(n, ranks) and (op == "world" or n != "gloo spawned")]
                times = {n: [] for n in asked}
                for _ in range(arguments.rounds):
                    for name in asked:
                        if times[name] == [None]:
                            continue
                        whole_process = op == "world" and name in ONE_WORLD_A_PROCESS
                        command = candidates[name](op, ranks, count, arguments.seconds)
                        times[name].append(ask(command, 60 + 20 * arguments.seconds, whole_process))
                known = {n: t for n, t in times.items() if t and None not in t}
                rows.append({"op": op, "ranks": ranks, "count": count, "ns": {n: statistics.median(t) for n, t in known.items()},
                             "noisy": [n for n, t in known.items() if max(t) - min(t) > NOISE * statistics.median(t)]})
                print(table(rows[-1:], names).splitlines()[-1], flush=True)
    text = table(rows, names)
    print("\n" + text)
    if arguments.plot:
        plot(rows, names, arguments.plot)
    return text, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long each program runs a round")
    parser.add_argument("--ops", type=lambda s: s.split(","), default=OPS)
    parser.add_argument("--shapes", type=lambda s: [tuple(map(int, p.split("x"))) for p in s.split(",")], default=SHAPES)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    parser.add_argument("--scale", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    described = machine()
    print(described, flush=True)
    text, rows = scale(arguments) if arguments.scale else peers(arguments)
    if arguments.table:
        arguments.table.write_text(text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
