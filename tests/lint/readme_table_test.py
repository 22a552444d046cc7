#!/usr/bin/env python3
"""readme_table_test.py OSCARKV: the README's table of errors is what `oscarkv replay` measures now."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Other compilers and processors round here and there differently.
TOLERANCE = 0.03


def measured(program):
    """{(model, row): {profile: number}}"""
    recordings = sorted(map(str, (ROOT / "tests" / "data").glob("*.safetensors")))
    command = [program, "replay", *recordings, "--profile", "all", "--json"]
    reports = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    table = {}
    for report in reports:
        model, profile = report["model"], report["profile"]
        table.setdefault((model, "bits per value"), {})[profile] = report["summary"]["bits_per_value"]
        for layer in report["layers"]:
            row = table.setdefault((model, f"layer {layer['layer']}"), {})
            row[profile] = layer["output_relative_error"]
    return table


def written(text):
    """The same from the README; the table is the one whose header names the profiles."""
    table, profiles = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == ["model", ""]:
            profiles = [cell.strip("`") for cell in cells[2:]]
        elif not line.startswith("|"):
            profiles = None
        elif profiles and re.match(r"[\d.]+$", cells[2]):
            table[cells[0], cells[1]] = dict(zip(profiles, map(float, cells[2:])))
    return table


def main(program):
    old, new = written((ROOT / "README.md").read_text()), measured(program)
    mistakes = []
    for key in sorted(old.keys() | new.keys()):
        for profile in sorted(old.get(key, {}).keys() | new.get(key, {}).keys()):
            said, found = old.get(key, {}).get(profile), new.get(key, {}).get(profile)
            if said is None or found is None or abs(said - found) > TOLERANCE * found + 0.0006:
                mistakes.append(f"{' '.join(key)} {profile}: README {said}, measured {found}")
    print("\n".join(mistakes) or f"{len(new)} rows agree")
    return 1 if mistakes or not new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
