#!/usr/bin/env python3
"""Checks who may include whom (CONTRIBUTING.md, "Borders").

layering_test.py [FOLDER]     checks the repository, or another folder laid out like it
layering_test.py --self-test  checks that every rule finds a seeded violation
"""

import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*(?:include|import)\s*([<"])([^">]+)[>"]')
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
GRPC = ("grpc/", "grpcpp/")
PROTOBUF = ("google/", "oscarkv/v1/")  # and what is generated from the contract
DESCRIBE_SESSION_FILES = ("server/base/error.h", "kernels/api/layer_spec.h", "kernels/api/profiles.h")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def rule_of_server(_, header, __):
    """server/ sees of kernels/ only the interface and the factory"""
    allowed = header.startswith("kernels/api/") or header == "kernels/backend_factory.h"
    return header.startswith("kernels/") and not allowed


def rule_of_core(_, header, __):
    """base, pages, file, session, queue and metrics of the server know neither gRPC nor protobuf nor server/rpc"""
    return header.startswith(GRPC + PROTOBUF + ("server/rpc/",))


def rule_of_metrics(path, header, _):
    """server/metrics alone knows prometheus-cpp, and of the server only server.cc knows server/metrics"""
    if path.startswith(("server/metrics/", "tests/")):
        return False
    return header.startswith("prometheus/") or header.startswith("server/metrics/") and path != "server/server.cc"


def rule_of_kernels(_, header, __):
    """kernels/ knows neither gRPC nor protobuf nor Abseil nor the server nor the client"""
    return header.startswith(GRPC + PROTOBUF + ("absl/", "server/", "client/"))


def rule_of_codec(_, header, quoted):
    """kernels/api and kernels/codec need only a C++ compiler"""
    if quoted:
        return not header.startswith(("kernels/api/", "kernels/codec/"))
    return not STANDARD_HEADER.match(header)


def rule_of_client(path, header, _):
    """client/ knows the contract and the formats of numbers; client/replay may run a server itself, client/cli reads
    session files"""
    if path.startswith("client/replay/") or header == "kernels/api/dtype.h":
        return False
    if path.startswith("client/cli/") and (header.startswith("server/file/") or header in DESCRIBE_SESSION_FILES):
        return False
    return header.startswith(("kernels/", "server/"))


def rule_of_product(_, header, __):
    """nothing outside tests/ includes tests/"""
    return header.startswith("tests/")


def rule_of_paths(_, header, quoted):
    """headers of the repository are included in quotes, by their path from its root"""
    local = header.startswith(("kernels/", "server/", "client/", "tests/"))
    return quoted and (header.startswith(".") or "/" not in header) or not quoted and local


RULES = [
    ("server/", rule_of_server),
    ("server/base/", rule_of_core),
    ("server/pages/", rule_of_core),
    ("server/file/", rule_of_core),
    ("server/session/", rule_of_core),
    ("server/queue/", rule_of_core),
    ("server/metrics/", rule_of_core),
    ("", rule_of_metrics),
    ("kernels/", rule_of_kernels),
    ("kernels/api/", rule_of_codec),
    ("kernels/codec/", rule_of_codec),
    ("client/", rule_of_client),
    ("server/", rule_of_product),
    ("kernels/", rule_of_product),
    ("client/", rule_of_product),
    ("", rule_of_paths),
]

# For the self-test: a violation of each rule, and what must not be taken for one.
SEEDED = [
    (rule_of_server, "server/pages/store.cc", '#include "kernels/cpu/attend.h"'),
    (rule_of_server, "server/main.cc", '#  include "kernels/codec/fit.h"  // why not'),
    (rule_of_core, "server/session/store.h", "#include <grpcpp/grpcpp.h>"),
    (rule_of_core, "server/base/error.cc", '#include "google/rpc/status.pb.h"'),
    (rule_of_core, "server/pages/table.cc", '#include "oscarkv/v1/kv_cache.pb.h"'),
    (rule_of_core, "server/session/store.cc", '#include "server/rpc/encode.h"'),
    (rule_of_core, "server/metrics/metric_table.cc", '#include "server/rpc/kv_cache_service.h"'),
    (rule_of_metrics, "server/session/store.cc", '#include "prometheus/exposer.h"'),
    (rule_of_metrics, "server/session/store.cc", '#include "server/metrics/metric_table.h"'),
    (rule_of_kernels, "kernels/cpu/attend.cc", '#include "absl/status/status.h"'),
    (rule_of_kernels, "kernels/cuda/attend.cu", "#include <google/protobuf/message.h>"),
    (rule_of_kernels, "kernels/cpu/attend.cc", '#include "server/base/error.h"'),
    (rule_of_codec, "kernels/codec/fit.cc", "#include <immintrin.h>"),
    (rule_of_codec, "kernels/codec/fit.h", "#include <tbb/parallel_for.h>"),
    (rule_of_codec, "kernels/api/backend.h", '#include "kernels/cpu/attend.h"'),
    (rule_of_client, "client/client.cc", '#include "server/base/error.h"'),
    (rule_of_client, "client/cli/main.cc", '#include "kernels/api/backend.h"'),
    (rule_of_client, "client/cli/verify.cc", '#include "server/session/session_store.h"'),
    (rule_of_client, "client/recording/recording.cc", '#include "server/file/posix_file.h"'),
    (rule_of_product, "client/client.cc", '#include "tests/kernels/oracle.h"'),
    (rule_of_paths, "client/client.cc", '#include "client.h"'),
    (rule_of_paths, "tests/kernels/fit_test.cc", '#include "../../kernels/codec/fit.h"'),
    (rule_of_paths, "server/main.cc", "#include <kernels/api/backend.h>"),
]
CLEAN = [
    ("server/main.cc", '#include "kernels/backend_factory.h"\n#include <grpcpp/grpcpp.h>'),
    ("server/session/store.cc", '#include "absl/status/status.h"\n#include "kernels/api/backend.h"'),
    ("server/server.cc", '#include "server/metrics/metrics_endpoint.h"'),
    ("server/metrics/metrics_endpoint.cc", '#include "prometheus/exposer.h"'),
    ("kernels/codec/fit.cc", '#include <cmath>\n#include "kernels/api/dtype.h"'),
    ("kernels/cpu/attend.cc", "#include <immintrin.h>\n// #include <grpcpp/grpcpp.h>"),
    ("client/tensors.cc", '#include "kernels/api/dtype.h"'),
    ("client/cli/verify.cc", '#include "server/file/posix_file.h"\n#include "server/base/error.h"'),
    ("client/replay/server.cc", '#include "server/rpc/service.h"'),
    ("tests/server/store_test.cc", '#include "kernels/cpu/attend.h"\n#include "tests/server/fake.h"'),
]


def violations(root):
    """Violations below `root`, as (rule, path, line number, line); and how many files were read."""
    found, files = [], 0
    for top in ("kernels", "server", "client", "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            files += 1
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                include = INCLUDE.match(line)
                if not include:
                    continue
                quoted, header = include[1] == '"', include[2]
                for prefix, rule in RULES:
                    if name.startswith(prefix) and rule(name, header, quoted):
                        found.append((rule, name, number, line.strip()))
    return found, files


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def self_test():
    failures = []
    for rule, name, line in SEEDED:
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), name, "#pragma once\n" + line)
            if (rule, name, 2, line.strip()) not in violations(pathlib.Path(folder))[0]:
                failures.append(f"not found: {name}: {line} ({rule.__doc__})")
    unseeded = {rule for _, rule in RULES} - {rule for rule, _, _ in SEEDED}
    failures += [f"no seeded violation of: {rule.__doc__}" for rule in unseeded]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in CLEAN:
            write(pathlib.Path(folder), name, text)
        failures += [f"wrongly found: {name}: {line}" for _, name, _, line in violations(pathlib.Path(folder))[0]]
    print("\n".join(failures) or f"all of {len(SEEDED)} seeded violations were found")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    found, files = violations(root)
    for rule, name, number, line in found:
        print(f"{name}:{number}: {line}\n  {rule.__doc__}")
    print(f"{files} files, {len(found)} violations")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
