#!/usr/bin/env python3
"""Runs the benchmark program on rows of every kind and checks its JSON and its refusals.

bench_test.py PROGRAM  runs it
bench_test.py FILE     checks a JSON file only, e.g. that of scripts/bench
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
TABLES = FOLDER / "tables.py"
NUMBER, COUNT, TEXT = (int, float), int, str
ROW = {
    "operation": TEXT, "profile": TEXT, "context": COUNT, "batch": COUNT, "query_heads": COUNT, "kv_heads": COUNT,
    "head_dim": COUNT, "queries": COUNT, "threads": COUNT, "seconds": NUMBER,
    "bf16_seconds": (int, float, type(None)), "read_seconds": NUMBER, "bf16_read_seconds": (int, float, type(None)),
    "bytes": COUNT, "bf16_bytes": COUNT, "repetitions": COUNT, "huge_page_share": (int, float, type(None)), "spread": dict, "peers": dict,
}
FILE = {"machine": dict, "date": TEXT, "version": TEXT, "revision": TEXT, "working_set_bytes": COUNT, "rows": list}
MACHINE = {"processor": TEXT, "cores": COUNT, "last_level_cache_bytes": COUNT, "memory_bytes": COUNT,
           "huge_pages": TEXT, "backend": TEXT, "baseline": TEXT}
OPTIONAL = {"seconds_beside_peers": float}  # with peers only
# Rows of every kind, as small as they can be.
RUNS = [
    ["--operation", "attend", "--profile", "DENSE,PRECISE,PAPER,KIVI", "--context", "1024"],
    ["--operation", "prefill", "--context", "1024", "--queries", "32", "--query-heads", "8"],
    ["--operation", "append,seal_given,seal_auto,read_tokens", "--context", "128"],
]
INSTRUCTIONS_RUN = ["--operation", "append", "--context", "128", "--repetitions", "1"]
# What is refused, and what is said of it.
REFUSED = [
    (["--operation", "atend"], "no operation atend"),
    (["--operation", "attend", "--profile", "dense"], "no profile dense"),
    (["--operation", "attend", "--context", "1000"], "context:1000/batch:1/heads:32x8/dim:128"),
    (["--operation", "attend", "--context", "1000,1001"], "no row is left"),
    (["--operation", "attend", "--context", "99999999999999999999"], "99999999999999999999 not in range"),
    (["--operation", "attend", "--batch", "5000"], "5000 not in range"),
    (["--operation", "attend", "--head-dim", "80"], "head_dim must be"),
    (["--operation", "attend", "--query-heads", "24"], "query heads per kv head must be"),
    (["--operation", "attend", "--threads", "0"], "0 not in range"),
    (["--operation", "seal_auto", "--context", "129"], "a multiple of 128"),
    (["--operation", "prefill", "--queries", "1"], "two queries or more"),
    (["--operation", "attend", "--queries", "5"], "only prefill has --queries: leave them out"),
    (["--operation", "attend", "--set", "must"], "leave out either it or --set"),
    (["--context", "1024"], "requires --operation"),
    (["--set", "everything"], "everything not in"),
    (["--cpu-instructions", "avx9"], "avx9 not in"),
    (["--filter", "("], "not a regular expression"),
    (["--filter", "nothing is called so"], "no row's name matches"),
    (["--repetitions", "0"], "0 not in range"),
    (["--what"], "--what"),
]
# Combinations that cannot be measured beside one that can.
LEFT_OUT = ["--operation", "attend,prefill", "--context", "128,1000", "--queries", "256"]
TOO_LARGE = ["--operation", "attend", "--context", "16777216", "--batch", "4096"]


def keys_agree(name, value, expected):
    """What is wrong with the keys of an object."""
    wrong = [f"{name}: no {key}" for key in expected if key not in value]
    wrong += [f"{name}: {key} is not expected" for key in value if key not in {**expected, **OPTIONAL}]
    return wrong + [f"{name}: {key} is {value[key]!r}" for key, kind in expected.items()
                    if key in value and not isinstance(value[key], kind)]


def check_file(path):
    """What is wrong with a JSON file, and its rows."""
    file = json.loads(pathlib.Path(path).read_text())
    wrong = keys_agree("file", file, FILE) or keys_agree("machine", file["machine"], MACHINE)
    if not wrong and not file["rows"]:
        wrong = ["no rows"]
    for row in file.get("rows", []):
        name = f"{row.get('operation')}/{row.get('profile')}/{row.get('context')}"
        wrong += keys_agree(name, row, ROW)
        attends = row["operation"] in ("attend", "prefill")
        wrong += [f"{name}: {key} is {row[key]}" for key in ("seconds", "bf16_seconds", "read_seconds",
                                                             "bf16_read_seconds")
                  if (row[key] is None and (attends or key in ("seconds", "read_seconds")))
                  or (row[key] is not None and not 0 < row[key] < 3600)]
        wrong += [f"{name}: peer {peer} is {seconds!r}" for peer, seconds in row["peers"].items()
                  if not isinstance(seconds, float) or seconds <= 0]
    return wrong, file.get("rows", [])


def check_document(path, folder):
    """Tables go where a document has room for them, and leave what is between."""
    document = pathlib.Path(folder) / "document.md"
    document.write_text("<!-- table machine -->\n<!-- end of table -->\nkept\n"
                        "<!-- table contexts -->\nold\n<!-- end of table -->\n")
    wrong = []
    for arguments in ([path, document], ["--check", path, document]):
        done = subprocess.run([TABLES, *arguments], text=True, capture_output=True, check=False)
        text = document.read_text()
        if done.returncode != 0 or "\nkept\n" not in text or "\nold\n" in text or text.count("<!--") != 4:
            wrong.append(f"tables.py {arguments}: {done.stdout}{done.stderr}{text}")
    return wrong


def check_left_out(program):
    """Rows that cannot be measured are named, and hinder no others."""
    wrong = []
    done = subprocess.run([program, *LEFT_OUT, "--list"], text=True, capture_output=True, check=False)
    notes = done.stderr.splitlines()
    if (done.returncode != 0 or len(done.stdout.splitlines()) != 1 or len(notes) != 3
            or not all(note.startswith("left out: ") and " must be " in note for note in notes)):
        wrong.append(f"{' '.join(LEFT_OUT)}: status {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    done = subprocess.run([program, *TOO_LARGE], text=True, capture_output=True, check=False)
    if done.returncode != 1 or "left out: needs " not in done.stdout or "more memory than" not in done.stderr:
        wrong.append(f"{' '.join(TOO_LARGE)}: status {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    return wrong


def check_instructions(program, path):
    """Each instruction set of this processor can be chosen, and the JSON names it."""
    usage = subprocess.run([program, "--help"], text=True, capture_output=True, check=True).stdout
    names = re.search(r"--cpu-instructions \S*?{auto,(.*?)}", usage)[1].split(",")
    wrong = []
    for name in names:
        subprocess.run([program, *INSTRUCTIONS_RUN, "--cpu-instructions", name, "--json", path],
                       stdout=subprocess.DEVNULL, check=True)
        backend = json.loads(path.read_text())["machine"]["backend"]
        if not backend.endswith(f", {name})"):
            wrong.append(f"--cpu-instructions {name}: measured {backend}")
    return wrong


def check_program(program):
    wrong, rows = [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "bench.json"
        for arguments in RUNS:
            command = [program, *arguments, "--repetitions", "1", "--json", path]
            expected = subprocess.run([*command, "--list"], text=True, capture_output=True, check=True).stdout
            done = subprocess.run(command, text=True, capture_output=True, check=False)
            if done.returncode != 0:
                wrong.append(f"{' '.join(arguments)}: status {done.returncode}: {done.stdout}{done.stderr}")
                continue
            mistakes, found = check_file(path)
            wrong += mistakes
            tables = subprocess.run([TABLES, path], text=True, capture_output=True, check=False)
            if tables.returncode != 0 or tables.stdout.count("\n| ") < len(found):
                wrong.append(f"{' '.join(arguments)}: no table of all rows: {tables.stdout}{tables.stderr}")
            wrong += check_document(path, folder)
            if len(found) != len(expected.splitlines()):
                wrong.append(f"{' '.join(arguments)}: {len(found)} rows, --list names {len(expected.splitlines())}")
            rows += len(found)
        wrong += check_instructions(program, path)
    for arguments, said in REFUSED:
        done = subprocess.run([program, *arguments], text=True, capture_output=True, check=False)
        if done.returncode != 2 or said not in done.stderr:
            wrong.append(f"{' '.join(arguments)}: status {done.returncode}, {done.stderr!r}")
    wrong += check_left_out(program)
    for path in FOLDER.glob("*.py"):  # plot.py and peers.py need packages that tests do not have
        compile(path.read_text(), path, "exec")
    return wrong, rows


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    if arguments[0].endswith(".json"):
        wrong, found = check_file(arguments[0])
        rows = len(found)
    else:
        wrong, rows = check_program(arguments[0])
    print("\n".join(wrong) or f"{rows} rows are as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
