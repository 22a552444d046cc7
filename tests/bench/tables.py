#!/usr/bin/env python3
"""Writes a benchmark's JSON as the tables of a Markdown document.

tables.py FILE.json                      prints them
tables.py FILE.json DOCUMENT.md          puts each into the document, between `<!-- table NAME -->` and
                                         `<!-- end of table -->`
tables.py --check FILE.json DOCUMENT.md  checks that it would change nothing
"""

import json
import pathlib
import re
import sys

BASE = {"profile": "DENSE", "batch": 1, "query_heads": 32, "kv_heads": 8, "head_dim": 128}
ATTENDS = ("attend", "prefill")


def plural(number, thing):
    return f"{number} {thing}" + "s" * (number != 1)


def count(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def milliseconds(seconds):
    if seconds is None:
        return ""
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def ratio(over, under):
    return "" if over is None or under is None else f"{over / under:.2f}x" if over < 9.95 * under else \
        f"{over / under:.1f}x"


def over_read(row):
    """Reading bytes once says nothing of a prefill, whose work grows with its queries."""
    return "" if row["operation"] == "prefill" else ratio(row["seconds"], row["read_seconds"])


def best(row, prefix):
    """The fastest of the peers whose names begin so, over ours as measured beside them."""
    fastest = min((seconds for name, seconds in row["peers"].items() if name.startswith(prefix)), default=None)
    return ratio(fastest, row.get("seconds_beside_peers"))


def table(heading, lines):
    """Markdown; no lines: none. Columns without anything in them are left out."""
    kept = [i for i in range(len(heading)) if any(line[i] for line in lines)]
    rows = [[heading[i] for i in kept], ["---"] * len(kept), *([line[i] for i in kept] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) if lines else "Not measured."


def is_base(row, threads):
    return row["operation"] == "attend" and row["threads"] == threads and all(
        row[key] == value for key, value in BASE.items())


def describe(row, threads):
    """In what a row differs from the base."""
    parts = [f"{row['profile']}", "1 token" if row["context"] == 1 else f"{count(row['context'])} tokens"]
    if row["operation"] == "prefill":
        parts[1] = f"{row['queries']} queries over {count(row['context'])}"
    if row["batch"] != BASE["batch"]:
        parts.append(f"{row['batch']} sessions")
    if row["query_heads"] != BASE["query_heads"]:
        parts.append(plural(row["query_heads"] // row["kv_heads"], "query head") + " a kv head")
    if row["head_dim"] != BASE["head_dim"]:
        parts.append(f"head_dim {row['head_dim']}")
    if row["threads"] != threads:
        parts.append(plural(row["threads"], "thread"))
    return ", ".join(parts)


def contexts(rows, threads):
    heading = ["tokens", "ms", "over reading its bytes", "BF16, ms", "BF16 over reading its bytes", "BF16 over ours",
               "us for 1K tokens more", "best PyTorch over ours", "best llama.cpp over ours"]
    lines, before = [], None
    for row in sorted((row for row in rows if is_base(row, threads)), key=lambda row: row["context"]):
        slope = ""
        if before:
            more = (row["seconds"] - before["seconds"]) / (row["context"] - before["context"])
            slope = f"{1e6 * 1024 * more:.1f}"
        lines.append([count(row["context"]), milliseconds(row["seconds"]), over_read(row),
                      milliseconds(row["bf16_seconds"]), ratio(row["bf16_seconds"], row["bf16_read_seconds"]),
                      ratio(row["bf16_seconds"], row["seconds"]), slope, best(row, "torch"),
                      best(row, "llamacpp")])
        before = row
    return table(heading, lines)


def variants(rows, threads):
    heading = ["row", "ms", "over reading its bytes", "BF16 over ours", "best PyTorch over ours",
               "best llama.cpp over ours"]
    return table(heading, [[describe(row, threads), milliseconds(row["seconds"]),
                            over_read(row), ratio(row["bf16_seconds"], row["seconds"]),
                            best(row, "torch"), best(row, "llamacpp")]
                           for row in rows if row["operation"] in ATTENDS and not is_base(row, threads)])


def tokens(rows, threads):
    heading = ["operation", "row", "ms", "GB/s of 16-bit tokens", "copying rows in 16 bits over ours"]
    return table(heading, [["`" + row["operation"] + "`", describe(row, threads), milliseconds(row["seconds"]),
                            f"{1e-9 * row['bf16_bytes'] / row['seconds']:.2f}",
                            ratio(row["bf16_seconds"], row["seconds"])]
                           for row in rows if row["operation"] not in ATTENDS])


def peers(rows, threads):
    rows = [row for row in rows if is_base(row, threads) and row["peers"]]
    names = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    return table(["tokens", *(f"`{name}`" for name in names)],
                 [[count(row["context"]), *(milliseconds(row["peers"].get(name)) for name in names)]
                  for row in sorted(rows, key=lambda row: row["context"])])


def machine(file):
    on, rows = file["machine"], file["rows"]
    shares = [row["huge_page_share"] for row in rows if row["huge_page_share"] is not None]
    least = f", of the program's memory {100 * min(shares):.0f}% or more" if shares else ""
    return (f"{on['processor']}, {on['cores']} cores, {on['last_level_cache_bytes'] >> 20} MiB of last-level cache; "
            f"huge pages: {on['huge_pages']}{least}.\nBackend: {on['backend']}; BF16 baseline: {on['baseline']}; "
            f"oscarkv {file['version']}, {file['date'][:10]}.")


def tables(file):
    """{name: Markdown}"""
    rows = file["rows"]
    # Rows of one thread are there to be compared with the others.
    threads = max(row["threads"] for row in rows)
    return {"machine": machine(file), **{make.__name__: make(rows, threads)
                                         for make in (contexts, variants, tokens, peers)}}


def filled(document, made):
    """The document with the tables in it; raises KeyError for a table that there is not."""
    return re.sub(r"(<!-- table (\w+) -->\n)(?:.*?\n)??(<!-- end of table -->)",
                  lambda match: match[1] + made[match[2]] + "\n" + match[3], document, flags=re.S)


def main(arguments):
    check = arguments[:1] == ["--check"]
    paths = [pathlib.Path(argument) for argument in arguments[check:]]
    if not 1 + check <= len(paths) <= 2 or any(str(path).startswith("-") for path in paths):
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    made = tables(json.loads(paths[0].read_text()))
    if len(paths) == 1:
        print("\n\n".join(made.values()))
        return 0
    old = paths[1].read_text()
    new = filled(old, made)
    if check:
        print(f"{paths[1]} {'agrees' if old == new else 'does not agree'} with {paths[0]}")
        return 0 if old == new else 1
    paths[1].write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
