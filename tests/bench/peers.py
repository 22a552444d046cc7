#!/usr/bin/env python3
"""Times what else computes attention on this CPU, for the rows of a benchmark's JSON.

peers.py FILE PROGRAM [OPTION]...
    measures each attend and prefill row that has no peers yet, then the row itself once more by
    PROGRAM (oscarkv_bench, with the OPTIONs), so that both saw the machine in the same state; and
    writes the file again

PyTorch in bf16: `scaled_dot_product_attention` with grouped heads (torch_sdpa_gqa), with heads
expanded by a view (torch_sdpa_expanded) and with a group's heads folded into query tokens
(torch_sdpa_folded), and two matrix products with a softmax between them (torch_bmm). llama.cpp:
ggml_flash_attn_ext on f16, q8_0 and q4_0 caches (llamacpp_f16, llamacpp_q8_0, llamacpp_q4_0), through
the libraries that llama-cpp-python builds for this machine.

As in the benchmark itself: the same shapes and threads, huge pages, every pass through a working set
of several times the last-level cache, medians. Keys and values lie as suits each best, the tokens of
a head side by side. All peers hold the same numbers, and their outputs are compared.
"""

import ctypes
import importlib.util
import json
import mmap
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

POOL = 32 * 31253  # numbers that memory is filled with, repeated: whole blocks of q4_0
REPETITIONS = 7
LONG_PASS = 4.0  # seconds; a pass that takes longer is made once
MEMORY_SHARE = 0.8  # of what is available


class Shape:
    def __init__(self, row):
        self.context, self.batch = row["context"], row["batch"]
        self.heads, self.kv_heads = row["query_heads"], row["kv_heads"]
        self.dim, self.queries, self.threads = row["head_dim"], row["queries"], row["threads"]
        self.group = self.heads // self.kv_heads
        self.scale = self.dim**-0.5
        self.elements = self.batch * self.kv_heads * self.context * self.dim  # of keys; of values

    def query(self):
        """[batch][kv_heads][group][queries][dim]"""
        random = np.random.default_rng(2)
        size = (self.batch, self.kv_heads, self.group, self.queries, self.dim)
        return torch.from_numpy(random.standard_normal(size, np.float32)).bfloat16().float()

    def visible(self):
        """[queries][context]: which tokens each query sees."""
        positions = torch.arange(self.context - self.queries, self.context)
        return torch.arange(self.context)[None, :] <= positions[:, None]


class Arena:
    """Anonymous memory in huge pages, filled with a block of bytes over and over."""

    def __init__(self, block):
        self.block, self.memory, self.view, self.bytes = block, None, None, 0

    def reserve(self, size):
        if size > self.bytes:
            self.view = self.memory = None
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            self.view, self.bytes = np.frombuffer(self.memory, np.uint8), size
            for begin in range(0, size, len(self.block)):
                part = self.view[begin:begin + len(self.block)]
                part[:] = self.block[:len(part)]
        return self.view


class Torch:
    """The formulations in PyTorch; each gets q [b, kv, g, n, d] and k, v [b, kv, t, d]."""

    name = "torch"

    def __init__(self, pool):
        self.arena = Arena(torch.from_numpy(pool).bfloat16().view(torch.uint8).numpy())

    def calls(self, shape, working_set):
        """Yields (name, function of the instance's index, instances, result -> [b, kv, g, n, d])."""
        torch.set_num_threads(shape.threads)
        instances = -(-working_set // (4 * shape.elements))
        memory = self.arena.reserve(instances * 4 * shape.elements)
        everything = torch.from_numpy(memory[:instances * 4 * shape.elements]).view(torch.bfloat16)
        everything = everything.view(instances, 2, shape.batch, shape.kv_heads, shape.context, shape.dim)
        for name, prepare in [("sdpa_gqa", self.gqa), ("sdpa_expanded", self.expanded),
                              ("sdpa_folded", self.folded), ("bmm", self.bmm)]:
            run, shaped = prepare(shape, shape.query().bfloat16())
            yield (f"torch_{name}", lambda i, run=run: run(everything[i, 0], everything[i, 1]), instances,
                   lambda out, shaped=shaped: shaped(out).float())

    @staticmethod
    def size(shape):
        return shape.batch, shape.kv_heads, shape.group, shape.queries, shape.dim

    def gqa(self, shape, q):
        b, kv, g, n, d = self.size(shape)
        q, mask = q.reshape(b, kv * g, n, d), None if n == 1 else shape.visible()
        return (lambda k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
                lambda out: out.reshape(b, kv, g, n, d))

    def expanded(self, shape, q):
        b, kv, g, n, d = self.size(shape)
        q, mask = q.reshape(b * kv, g, n, d), None if n == 1 else shape.visible()

        def run(k, v):
            k = k.reshape(b * kv, 1, -1, d).expand(-1, g, -1, -1)
            v = v.reshape(b * kv, 1, -1, d).expand(-1, g, -1, -1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        return run, lambda out: out.reshape(b, kv, g, n, d)

    def folded(self, shape, q):
        b, kv, g, n, d = self.size(shape)
        q, mask = q.reshape(b, kv, g * n, d), None if n == 1 else shape.visible().repeat(g, 1)
        return (lambda k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
                lambda out: out.reshape(b, kv, g, n, d))

    def bmm(self, shape, q):
        b, kv, g, n, d = self.size(shape)
        q = (q * shape.scale).reshape(b * kv, g * n, d)
        hidden = None if n == 1 else ~shape.visible().repeat(g, 1)

        def run(k, v):
            logits = torch.bmm(q, k.reshape(b * kv, -1, d).transpose(1, 2))
            if hidden is not None:
                logits.masked_fill_(hidden, -torch.inf)
            return torch.bmm(torch.softmax(logits, -1), v.reshape(b * kv, -1, d))

        return run, lambda out: out.reshape(b, kv, g, n, d)


class Plan(ctypes.Structure):
    """ggml_cplan of the pinned version."""

    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("n_threads", ctypes.c_int),
                ("threadpool", ctypes.c_void_p), ("abort_callback", ctypes.c_void_p),
                ("abort_callback_data", ctypes.c_void_p), ("use_ref", ctypes.c_bool)]


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class LlamaCpp:
    """ggml's flash attention on caches of one type."""

    F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
    name = "llamacpp"

    def __init__(self, pool):
        self.base, self.cpu = self.load()
        self.arenas = {self.F16: Arena(pool.astype(np.float16).view(np.uint8))}
        for kind, block_bytes in [(self.Q8_0, 34), (self.Q4_0, 18)]:
            quantized = np.empty(len(pool) // 32 * block_bytes, np.uint8)
            self.base.ggml_quantize_chunk(kind, pool.ctypes.data, quantized.ctypes.data, 0, 1, len(pool), None)
            self.arenas[kind] = Arena(quantized)
        self.pools = {}

    @staticmethod
    def load():
        folder = pathlib.Path(importlib.util.find_spec("llama_cpp").submodule_search_locations[0]) / "lib"
        base = ctypes.CDLL(folder / "libggml-base.so", mode=ctypes.RTLD_GLOBAL)
        cpu = ctypes.CDLL(folder / "libggml-cpu.so", mode=ctypes.RTLD_GLOBAL)
        pointer, size, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
        for library, name, result, arguments in [
                (base, "ggml_init", pointer, [InitParams]),
                (base, "ggml_free", None, [pointer]),
                (base, "ggml_new_tensor_4d", pointer, [pointer, integer, size, size, size, size]),
                (base, "ggml_get_data", pointer, [pointer]),
                (base, "ggml_nbytes", ctypes.c_size_t, [pointer]),
                (base, "ggml_new_graph", pointer, [pointer]),
                (base, "ggml_graph_overhead", ctypes.c_size_t, []),
                (base, "ggml_tensor_overhead", ctypes.c_size_t, []),
                (base, "ggml_build_forward_expand", None, [pointer, pointer]),
                (base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [real] * 3),
                (base, "ggml_quantize_chunk", ctypes.c_size_t,
                 [integer, pointer, pointer, size, size, size, pointer]),
                (base, "ggml_backend_cpu_buffer_from_ptr", pointer, [pointer, ctypes.c_size_t]),
                (base, "ggml_backend_buffer_free", None, [pointer]),
                (base, "ggml_backend_tensor_alloc", integer, [pointer, pointer, pointer]),
                (base, "ggml_threadpool_params_init", None, [pointer, integer]),
                (cpu, "ggml_threadpool_new", pointer, [pointer]),
                (cpu, "ggml_graph_plan", Plan, [pointer, integer, pointer]),
                (cpu, "ggml_graph_compute", integer, [pointer, ctypes.POINTER(Plan)])]:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        cpu.ggml_cpu_init()
        return base, cpu

    def threadpool(self, threads):
        if threads not in self.pools:
            params = ctypes.create_string_buffer(4096)
            self.base.ggml_threadpool_params_init(params, threads)
            self.pools[threads] = self.cpu.ggml_threadpool_new(params)
        return self.pools[threads]

    def calls(self, shape, working_set):
        for name, kind, block_bytes in [("f16", self.F16, 64), ("q8_0", self.Q8_0, 34), ("q4_0", self.Q4_0, 18)]:
            side = shape.elements // 32 * block_bytes
            instances = -(-working_set // (2 * side))
            memory = self.arenas[kind].reserve(instances * 2 * side)
            graphs = Graphs(self, shape, kind, memory, instances, side)
            try:
                yield f"llamacpp_{name}", graphs.run, instances, graphs.result
            finally:
                graphs.free()


class Graphs:
    """A graph of one operation for each instance; the output is shared."""

    def __init__(self, ggml, shape, kind, memory, instances, side):
        self.ggml, self.shape, base = ggml, shape, ggml.base
        b, kv, g, n, d, t = *Torch.size(shape), shape.context
        overhead = instances * (base.ggml_graph_overhead() + 4 * base.ggml_tensor_overhead()) + (1 << 20)
        self.context = base.ggml_init(InitParams(overhead, None, True))
        # q [b][head][n][d], f32; the output [b][n][head][d]; the mask of a prefill, f16
        self.query = np.ascontiguousarray(shape.query().numpy())
        self.output = np.zeros((b, n, kv * g, d), np.float32)
        self.mask = np.where(shape.visible().numpy(), 0, -np.inf).astype(np.float16)
        self.buffers = []
        q = self.tensor(ggml.F32, (d, n, kv * g, b), self.query.ctypes.data, self.query.nbytes)
        mask = None if n == 1 else self.tensor(ggml.F16, (t, n, 1, 1), self.mask.ctypes.data, self.mask.nbytes)
        address = memory.ctypes.data
        self.graphs, work = [], 0
        for i in range(instances):
            k = self.tensor(kind, (d, t, kv, b), address + 2 * i * side, side)
            v = self.tensor(kind, (d, t, kv, b), address + (2 * i + 1) * side, side)
            out = base.ggml_flash_attn_ext(self.context, q, k, v, mask, shape.scale, 0, 0)
            self.place(out, self.output.ctypes.data, self.output.nbytes)
            graph = base.ggml_new_graph(self.context)
            base.ggml_build_forward_expand(graph, out)
            plan = ggml.cpu.ggml_graph_plan(graph, shape.threads, ggml.threadpool(shape.threads))
            work = max(work, plan.work_size)
            self.graphs.append((graph, plan))
        self.work = np.zeros(work + 64, np.uint8)
        for _, plan in self.graphs:
            plan.work_data = self.work.ctypes.data

    def tensor(self, kind, sizes, address, size):
        tensor = self.ggml.base.ggml_new_tensor_4d(self.context, kind, *sizes)
        self.place(tensor, address, size)
        return tensor

    def place(self, tensor, address, size):
        base = self.ggml.base
        assert base.ggml_nbytes(tensor) == size, (base.ggml_nbytes(tensor), size)
        # ggml wants buffers to begin at multiples of 32 or 64 bytes; tensors need not.
        begin = address // 64 * 64
        buffer = base.ggml_backend_cpu_buffer_from_ptr(begin, size + address - begin)
        self.buffers.append(buffer)
        assert base.ggml_backend_tensor_alloc(buffer, tensor, address) == 0

    def run(self, i):
        graph, plan = self.graphs[i]
        assert self.ggml.cpu.ggml_graph_compute(graph, ctypes.byref(plan)) == 0

    def result(self, _):
        b, kv, g, n, d = Torch.size(self.shape)
        return torch.from_numpy(self.output.copy()).reshape(b, n, kv, g, d).permute(0, 2, 3, 1, 4)

    def free(self):
        for buffer in self.buffers:
            self.ggml.base.ggml_backend_buffer_free(buffer)
        self.ggml.base.ggml_free(self.context)


def available_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 << 30


def measure(call, instances, repetitions):
    """Seconds of one call: the median of passes, the first not counted; unless that takes long."""
    seconds = []
    for _ in range(1 + repetitions):
        begin = time.perf_counter()
        for i in range(instances):
            call(i)
        seconds.append((time.perf_counter() - begin) / instances)
        if seconds[0] * instances > LONG_PASS:
            return seconds[0]
    return statistics.median(seconds[1:])


def ours_again(row, program):
    """Seconds of the row, measured now. `program`: with its options."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "row.json"
        command = [*program, "--json", path, "--repetitions", str(REPETITIONS)]
        for key in ("operation", "profile", "context", "batch", "query_heads", "kv_heads", "head_dim", "threads",
                    *(["queries"] if row["operation"] == "prefill" else [])):
            command += [f"--{key.replace('_', '-')}", str(row[key])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())["rows"][0]["seconds"]


def measure_row(row, peers, working_set, program):
    shape = Shape(row)
    if 12 * shape.elements + 4 * working_set > MEMORY_SHARE * available_bytes():
        print(f"{describe(row)}: left out, needs too much memory", flush=True)
        return
    repetitions = min(row["repetitions"], REPETITIONS)
    reference = None
    for peer in peers:
        for name, call, instances, result in peer.calls(shape, working_set):
            out = result(call(0))
            reference = out if reference is None else reference
            error = float((out - reference).norm() / reference.norm())
            # ggml sums the values of f16 caches in f16, which shows in long contexts.
            bound = {"llamacpp_q4_0": 0.3, "llamacpp_f16": 0.1}.get(name, 0.03)
            if not error < bound:
                raise SystemExit(f"error: {name} computes something else: relative error {error:.3f}")
            row["peers"][name] = measure(call, instances, repetitions)
    row["seconds_beside_peers"] = ours_again(row, program)
    best = min(row["peers"], key=row["peers"].get)
    times = ", ".join(f"{name} {1e3 * seconds:.3f}" for name, seconds in row["peers"].items())
    print(f"{describe(row)}: ours {1e3 * row['seconds_beside_peers']:.3f} ms; {times}; "
          f"the best, {best}, takes {row['peers'][best] / row['seconds_beside_peers']:.1f}x ours", flush=True)


def describe(row):
    return (f"{row['operation']} {row['profile']} {row['context']} x {row['batch']}, heads "
            f"{row['query_heads']}x{row['kv_heads']}, dim {row['head_dim']}, {row['threads']} threads")


def main(arguments):
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    path = pathlib.Path(arguments[0])
    file = json.loads(path.read_text())
    pool = np.random.default_rng(1).standard_normal(POOL, np.float32)
    peers = [Torch(pool), LlamaCpp(pool)]
    with torch.inference_mode():
        for row in file["rows"]:
            if row["operation"] not in ("attend", "prefill") or row["peers"]:
                continue
            measure_row(row, peers, file["working_set_bytes"], arguments[1:])
            path.write_text(json.dumps(file, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
