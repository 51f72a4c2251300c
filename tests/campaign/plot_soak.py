#!/usr/bin/env python3
"""Plots what `./dev campaign --soak --csv FILE` has kept: memory, descriptors and threads over what was done.

    python3 tests/campaign/plot_soak.py soak.csv docs/images/soak.png    wants matplotlib (Debian: python3-matplotlib)
"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402: behind the choice of a backend

PANELS = {
    "resident memory, MB": lambda row: int(row["resident_kb"]) / 1024,
    "allocated memory, MB": lambda row: int(row["allocated_kb"]) / 1024,
    "descriptors": lambda row: int(row["descriptors"]),
    "threads": lambda row: int(row["threads"]),
}


def main():
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(12, 3), sharex=True)
    for panel, (title, value) in zip(panels, PANELS.items(), strict=True):
        for part in dict.fromkeys(row["part"] for row in rows):
            own = [row for row in rows if row["part"] == part]
            most = max(int(row["done"]) for row in own)
            panel.plot([100 * int(row["done"]) / most for row in own], [value(row) for row in own], label=part)
        panel.set_title(title, fontsize=10)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("% of the part")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.16, 1, 1))
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
