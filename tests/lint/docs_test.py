#!/usr/bin/env python3
"""Checks what the documents promise: README.md, CONTRIBUTING.md, docs/, kernels/*.md.

docs_test.py              scripts, presets, paths, links and quoted examples exist and agree
docs_test.py --bin DIR    also that our programs in DIR know each command and flag (by --help)
docs_test.py --self-test  checks that each kind of mistake is found

Commands are the lines of ```sh blocks; output of commands belongs into ```text blocks.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Programs of others that the documents may call; CMake's are looked at more closely.
FOREIGN = {"git", "cd", "sudo", "docker", "buf", "export", "python3", "gdb", "perf"}
# A program of ours, by any path.
OURS = ("oscarkv-server", "oscarkv")
# Code blocks of README.md that must equal what a file has between two marks.
EXAMPLES = {"cpp": "client/examples/quickstart.cc", "python": "client/examples/quickstart.py"}


def blocks(text):
    """Yields (language, first line number, lines) of the fenced blocks of a document."""
    language, begin, lines = None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"^\s*```\s*(\w*)\s*$", line)
        if not fence:
            lines.append(line)
        elif language is None:
            language, begin, lines = fence[1] or "text", number + 1, []
        else:
            yield language, begin, lines
            language = None


def commands(lines, begin):
    """Yields (line number, words) of the commands of a block, continuation lines joined."""
    pending, start = "", begin
    for number, line in enumerate(lines, begin):
        if not pending:
            start = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        for part in re.split(r"&&|\|\||;|\|", pending + line):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield start, [word for word in words if word != "&"]
        pending = ""


class Checker:
    def __init__(self, root, programs=None):
        self.root, self.programs, self.mistakes, self.helps = root, programs, [], {}
        presets = json.loads((root / "CMakePresets.json").read_text())
        self.presets = {preset["name"] for preset in presets["configurePresets"]}
        self.options = set(re.findall(r"OSCARKV_\w+", "".join(
            path.read_text() for path in [root / "CMakeLists.txt", *root.glob("*/**/CMakeLists.txt"),
                                          *root.glob("cmake/*.cmake")]
            if "build" not in path.relative_to(root).parts)))

    def mistake(self, where, message):
        self.mistakes.append(f"{where}: {message}")

    def check(self, path):
        name, text = path.relative_to(self.root).as_posix(), path.read_text()
        for language, begin, lines in blocks(text):
            if language == "sh":
                for number, words in commands(lines, begin):
                    self.check_command(f"{name}:{number}", words)
            if name == "README.md" and language in EXAMPLES:
                self.check_example(f"{name}:{begin}", EXAMPLES[language], lines)
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in target and not (path.parent / target).exists():
                self.mistake(name, f"link to {target}, which does not exist")
        for quoted in re.findall(r"`([^`\n]+)`", prose):
            self.check_path(name, quoted)

    def check_path(self, where, quoted):
        """A quoted path below a folder of ours must exist; * and <...> stand for anything."""
        if not re.fullmatch(r"[\w./*<>+-]+", quoted) or "/" not in quoted or quoted.startswith("build/"):
            return
        if not (self.root / quoted.split("/")[0]).is_dir() or quoted.startswith("."):
            return
        if not list(self.root.glob(re.sub(r"<[^>]*>", "*", quoted.rstrip("/")))):
            self.mistake(where, f"`{quoted}` does not exist")

    def check_command(self, where, words):
        program = words[0].rsplit("/", 1)[-1]
        if program in OURS and words[0] != "oscarkv/":
            self.check_ours(where, program, words[1:])
        elif program in ("cmake", "ctest"):
            self.check_cmake(where, words)
        elif "/" in words[0] and not words[0].startswith("build/"):
            script = self.root / words[0]
            if not script.is_file() or not script.stat().st_mode & 0o100:
                self.mistake(where, f"{words[0]} is not a script of the repository")
        elif not words[0].startswith("build/") and words[0] not in FOREIGN:
            self.mistake(where, f"unknown command {words[0]}")

    def check_cmake(self, where, words):
        for option, value in zip(words, words[1:]):
            if option == "--preset" and value not in self.presets:
                self.mistake(where, f"no preset {value} in CMakePresets.json")
        for word in words:
            option = re.match(r"-D(OSCARKV_\w+)", word)
            if option and option[1] not in self.options:
                self.mistake(where, f"no option {option[1]} in the build")

    def check_ours(self, where, program, words):
        if not self.programs:
            return
        # Commands come first; what follows them are flags and arguments.
        command = []
        if program == "oscarkv":
            while words and re.fullmatch(r"[a-z]+", words[0]) and len(command) < 2:
                if self.help(program, [*command, words[0]]) is None:
                    break
                command.append(words[0])
                words = words[1:]
        if program == "oscarkv" and not command and "--help" not in words and "--version" not in words:
            self.mistake(where, f"{program} has no command {' '.join(words[:1])}")
            return
        known = self.help(program, command)
        if known is None:
            self.mistake(where, f"{' '.join([program, *command])} --help fails")
            return
        for word in words:
            flag = re.match(r"--?[a-z][a-z0-9-]*", word)
            if flag and flag[0] != "--help" and not re.search(re.escape(flag[0]) + r"\b(?!-)", known):
                self.mistake(where, f"{' '.join([program, *command])} has no flag {flag[0]}")

    def help(self, program, command):
        """What --help prints of a command; None if it fails."""
        key = (program, *command)
        if key not in self.helps:
            done = subprocess.run([self.programs / program, *command, "--help"], text=True, timeout=60,
                                  stdin=subprocess.DEVNULL, capture_output=True, check=False)
            self.helps[key] = done.stdout if done.returncode == 0 else None
        return self.helps[key]

    def check_example(self, where, name, lines):
        path = self.root / name
        if not path.is_file():
            self.mistake(where, f"{name} does not exist")
        elif "\n".join(lines).strip() not in path.read_text():
            self.mistake(where, f"the example is not what {name} says")


def documents(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")),
            *(path for folder in ("kernels", "server", "tests") for path in sorted((root / folder).rglob("*.md")))]


def self_test():
    program = "#!/bin/sh\n[ \"$1\" = replay ] && [ \"$2\" = --help ] && echo '--profile NAME'\n"
    good = ("```sh\nscripts/demo && cmake --preset release -DOSCARKV_TESTS=OFF\n"
            "bin/oscarkv replay x.safetensors \\\n  --profile all\n```\n"
            "[a](docs/a.md) `server/base/` `docs/*.md` `and/or`\n```cpp\nint a;\n```\n")
    wrong = {
        "```sh\nscripts/gone\n```": "not a script",
        "```sh\nmake all\n```": "unknown command",
        "```sh\ncmake --preset fast\n```": "no preset",
        "```sh\ncmake -DOSCARKV_GONE=ON .\n```": "no option",
        "```sh\noscarkv repaly x\n```": "no command",
        "```sh\noscarkv replay --profil x\n```": "no flag",
        "[a](docs/b.md)": "link to",
        "`server/gone/`": "does not exist",
        "```cpp\nint b;\n```": "is not what",
        "```python\nb = 1\n```": "does not exist",
    }
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"CMakePresets.json": '{"configurePresets": [{"name": "release"}]}',
                           "CMakeLists.txt": "option(OSCARKV_TESTS)", "docs/a.md": "", "scripts/demo": "",
                           "server/base/a.h": "", "client/examples/quickstart.cc": "x;\nint a;\n",
                           "bin/oscarkv": program}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        for name in ("scripts/demo", "bin/oscarkv"):
            (root / name).chmod(0o755)
        for text, expected in {good: None, **wrong}.items():
            (root / "README.md").write_text(text)
            checker = Checker(root, root / "bin")
            checker.check(root / "README.md")
            found = checker.mistakes
            if expected is None and found or expected and (len(found) != 1 or expected not in found[0]):
                failures.append(f"{text!r}: expected {expected}, found {found}")
    print("\n".join(failures) or f"all of {len(wrong)} seeded mistakes were found")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    checker = Checker(ROOT, pathlib.Path(arguments[1]).resolve() if arguments[:1] == ["--bin"] else None)
    for path in documents(ROOT):
        checker.check(path)
    print("\n".join(checker.mistakes) or f"{len(documents(ROOT))} documents agree with the repository")
    return 1 if checker.mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
