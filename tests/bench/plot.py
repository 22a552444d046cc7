#!/usr/bin/env python3
"""Plots a benchmark's JSON: time of one decode query against context. Writes FILE.png and FILE.svg.

plot.py FILE.json
"""

import collections
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def curves(rows):
    """The rows of the shape that most contexts were measured for."""
    shapes = collections.defaultdict(dict)
    for row in rows:
        if row["operation"] == "attend" and row["batch"] == 1:
            key = (row["profile"] == "DENSE", row["threads"], row["query_heads"], row["kv_heads"], row["head_dim"],
                   row["profile"])
            shapes[key][row["context"]] = row
    if not shapes:
        return []
    best = max(shapes, key=lambda key: (len(shapes[key]), key))
    return [shapes[best][context] for context in sorted(shapes[best])]


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    path = pathlib.Path(arguments[0])
    file = json.loads(path.read_text())
    rows = curves(file["rows"])
    if not rows:
        print("no rows of attend with one session: nothing to plot")
        return 0
    contexts = [row["context"] for row in rows]
    figure, axes = plt.subplots(figsize=(8, 5.5))

    def draw(label, values, **style):
        known = [(context, 1e3 * value) for context, value in zip(contexts, values) if value is not None]
        if known:
            axes.plot(*zip(*known), label=label, **style)

    first = rows[0]
    draw(f"oscarkv, {first['profile']}", [row["seconds"] for row in rows], marker="o", color="C0", linewidth=2)
    draw("reading its bytes", [row["read_seconds"] for row in rows], linestyle=":", color="C0")
    draw("BF16 flash decoding", [row["bf16_seconds"] for row in rows], marker="s", color="C1", linewidth=2)
    draw("reading its bytes", [row["bf16_read_seconds"] for row in rows], linestyle=":", color="C1")
    names = sorted({name for row in rows for name in row["peers"]})
    for i, name in enumerate(names):
        draw(name, [row["peers"].get(name) for row in rows], marker=".", linewidth=1, color=f"C{2 + i % 8}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(contexts, [f"{c // 1024}K" if c % 1024 == 0 else str(c) for c in contexts])
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("one decode query, ms")
    axes.set_title(f"{file['machine']['processor']}, {first['threads']} threads; {first['query_heads']} query heads, "
                   f"{first['kv_heads']} kv heads of {first['head_dim']}", fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150, bbox_inches="tight")
        print(path.with_suffix(suffix))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
