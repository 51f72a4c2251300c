#!/usr/bin/env python3
"""Times the same operations through rankloom and through what one would use instead, interleaved, and prints one table.

compare.py [--build DIR] [--rounds N] [--seconds S] [--ops a,b] [--shapes 4x1,64x1024] [--json FILE] [--plot FILE] [--table FILE]

A peer that is not installed is left out, and said so. Every figure is the median over the rounds of nanoseconds of one
operation over all ranks; each round asks every program once, one after another.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "barrier"]
SHAPES = [(4, 1), (4, 1024), (16, 1024), (64, 1024), (1024, 1024), (4, 1048576)]
# How many ranks a peer is asked for at most: beyond these one operation takes seconds here, or the peer refuses.
MOST_RANKS = {"Open MPI": 64, "MPICH": 64, "SMPI": 1024, "gloo": 16, "torch threaded": 64}


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


def ask(command, timeout):
    """Nanoseconds of one operation, or None if the program failed or took too long."""
    arguments, environment = command
    process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, **environment}, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None
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


def table(rows, names):
    peers = [n for n in names if not n.startswith("rankloom")]
    out = ["| operation | ranks x elements | " + " | ".join(names) + " | best peer / fibers | best peer / threads |",
           "| --- | --- |" + " ---: |" * (len(names) + 2)]
    for row in rows:
        ns = row["ns"]
        best = min((ns[p] for p in peers if ns.get(p)), default=None)

        def ratio(own):
            return f"{best / ns[own]:.3g}" if best and ns.get(own) else "-"

        out.append(f"| {row['op']} | {row['ranks']} x {row['count']} | " + " | ".join(time_text(ns.get(n)) for n in names) +
                   f" | {ratio('rankloom fibers')} | {ratio('rankloom threads')} |")
    return "\n".join(out)


def plot(rows, names, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5))
    mine = [r for r in rows if r["op"] == "all_reduce"]
    for name in names:
        by_ranks = sorted((r["ranks"], r["ns"][name] / 1e3) for r in mine if r["count"] == 1024 and r["ns"].get(name))
        by_size = sorted((r["count"], r["ns"][name] / 1e3) for r in mine if r["ranks"] == 4 and r["ns"].get(name))
        for axis, points in zip(axes, (by_ranks, by_size)):
            if points:
                axis.plot(*zip(*points), marker="o", label=name)
    for axis, label, title in zip(axes, ("ranks", "elements"), ("1,024 elements", "4 ranks")):
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="us an all_reduce", title="all_reduce, float32, " + title)
        axis.legend()
        axis.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


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
    arguments = parser.parse_args()

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
        }
        names = [n for n, c in candidates.items() if c is not None]
        for name, command in candidates.items():
            if command is None:
                print(f"{name}: not installed, left out", flush=True)
        described = machine()
        print(described, flush=True)
        rows = []
        for op in arguments.ops:
            for ranks, count in arguments.shapes:
                if op == "barrier" and count != 1:
                    continue
                times = {n: [] for n in names}
                for _ in range(arguments.rounds):
                    for name in names:
                        if ranks > MOST_RANKS.get(name, ranks) or times[name] == [None]:
                            continue
                        times[name].append(ask(candidates[name](op, ranks, count, arguments.seconds), 60 + 20 * arguments.seconds))
                ns = {n: statistics.median(t) for n, t in times.items() if t and None not in t}
                rows.append({"op": op, "ranks": ranks, "count": count, "ns": ns})
                print(table(rows[-1:], names).splitlines()[-1], flush=True)
        text = table(rows, names)
        print("\n" + text)
        if arguments.table:
            arguments.table.write_text(text + "\n")
        if arguments.json:
            arguments.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=1) + "\n")
        if arguments.plot:
            plot(rows, names, arguments.plot)


if __name__ == "__main__":
    main()
