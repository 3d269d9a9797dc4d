"""Small model files of every format, written with random tensor bytes.

Each `write_*` takes a path and returns a `Written` per range that the file's manifest names, in order of offset, so
that a test compares what a parser or a mount finds with what was written. Sizes are bytes; tensor sizes are rounded
down to whole rows of ROW_BYTES. The same arguments give the same bytes. Tensors are written one by one: files of
gigabytes need no memory.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

EMBD = 256
ROW_BYTES = 2 * EMBD
"""A row of F16 weights."""

F32, F16, Q8_0 = 0, 1, 8
Q8_0_ROW_BYTES = EMBD // 32 * 34


class Written(NamedTuple):
    """One range as it was written. `crc32` is that of its bytes; `kind` is "header", "dense" or "expert"."""

    name: str
    offset: int
    size: int
    kind: str
    crc32: int

    def matches(self, data: bytes) -> bool:
        """Whether these are the range's bytes."""
        return len(data) == self.size and zlib.crc32(data) == self.crc32


class _Tensor(NamedTuple):
    name: str
    dimensions: tuple[int, ...]  # fastest first, as GGUF has them
    type_number: int
    size: int
    experts: int = 0  # slices along the last dimension


def _rows(size: int) -> int:
    return max(1, size // ROW_BYTES)


def _model_tensors(layers: Sequence[int], experts: int, dense_bytes: int, expert_bytes: int) -> list[_Tensor]:
    rows, expert_rows = _rows(dense_bytes), _rows(expert_bytes)
    tensors = [_Tensor("token_embd.weight", (EMBD, rows), F16, rows * ROW_BYTES)] if 0 in layers else []
    for layer in layers:
        tensors.append(_Tensor(f"blk.{layer}.attn_norm.weight", (EMBD,), F32, 4 * EMBD))
        tensors.append(_Tensor(f"blk.{layer}.attn_q.weight", (EMBD, rows), Q8_0, rows * Q8_0_ROW_BYTES))
        tensors += [
            _Tensor(
                f"blk.{layer}.ffn_{role}_exps.weight",
                (EMBD, expert_rows, experts),
                F16,
                experts * expert_rows * ROW_BYTES,
                experts,
            )
            for role in ("gate", "up", "down")
            if experts
        ]
    return tensors


def _write_slices(
    out: BinaryIO, rng: np.random.Generator, name: str, size: int, slices: int, kind: str
) -> list[Written]:
    """Random bytes: one range, or `slices` equal ones named `name[i]`."""
    written = []
    for i in range(max(1, slices)):
        data = rng.bytes(size // max(1, slices))
        label = f"{name}[{i}]" if slices else name
        written.append(Written(label, out.tell(), len(data), "expert" if slices else kind, zlib.crc32(data)))
        out.write(data)
    return written


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _gguf_header(tensors: Sequence[_Tensor], version: int, alignment: int, vocabulary: int) -> bytes:
    metadata = [
        _string("general.architecture") + struct.pack("<I", 8) + _string("llama"),
        _string("general.alignment") + struct.pack("<II", 4, alignment),
        _string("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        _string("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, vocabulary)
        + b"".join(_string(f"token{i}") for i in range(vocabulary)),
        _string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, vocabulary) + bytes(4 * vocabulary),
    ]
    infos, offset = [], 0
    for t in tensors:
        shape = struct.pack(f"<I{len(t.dimensions)}Q", len(t.dimensions), *t.dimensions)
        infos.append(_string(t.name) + shape + struct.pack("<IQ", t.type_number, offset))
        offset += -(-t.size // alignment) * alignment
    start = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    return b"".join((start, *metadata, *infos))


def write_gguf(
    path: Path,
    *,
    seed: int = 0,
    layers: Sequence[int] = (0, 1),
    experts: int = 4,
    dense_bytes: int = 256 << 10,
    expert_bytes: int = 64 << 10,
    alignment: int = 32,
    version: int = 3,
    vocabulary: int = 32,
) -> list[Written]:
    """A mixture-of-experts GGUF (`experts=0`: a dense one; `layers=()`: a header alone).

    Args:
        layers: the numbers of the layers that this file holds; layer 0 brings the embedding along.
        expert_bytes: of one expert's gate, up or down slice.
        vocabulary: number of tokens in the metadata.
    """
    tensors = _model_tensors(layers, experts, dense_bytes, expert_bytes)
    header = _gguf_header(tensors, version, alignment, vocabulary)
    rng = np.random.default_rng(seed)
    with path.open("wb") as out:
        out.write(header.ljust(-(-len(header) // alignment) * alignment, b"\0"))
        written = [_header(out.tell(), path, out)]
        for t in tensors:
            written += _write_slices(out, rng, t.name, t.size, t.experts, "dense")
            out.write(bytes(-out.tell() % alignment))
    return written


def _header(size: int, path: Path, out: BinaryIO) -> Written:
    out.flush()
    with path.open("rb") as back:
        return Written("header", 0, size, "header", zlib.crc32(back.read(size)))


def write_gguf_split(
    folder: Path, shards: int = 4, *, stem: str = "model", seed: int = 0, layers: int = 4, **options: int
) -> dict[Path, list[Written]]:
    """A GGUF split into shards `stem-00001-of-0000N.gguf`, the layers dealt out in order; more shards than layers give
    shards with a header alone. Options as `write_gguf`.

    Returns: what was written, by shard.
    """
    written = {}
    per_shard = -(-layers // shards)
    for i in range(shards):
        path = folder / f"{stem}-{i + 1:05}-of-{shards:05}.gguf"
        numbers = range(layers)[i * per_shard : (i + 1) * per_shard]
        written[path] = write_gguf(path, seed=seed + i, layers=numbers, **options)
    return written


def write_safetensors(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    experts: int = 4,
    fused: bool = False,
    dense_bytes: int = 256 << 10,
    expert_bytes: int = 64 << 10,
    header_padding: int = 5,
) -> list[Written]:
    """A safetensors file whose experts are tensors of their own, or (`fused`) 3-D tensors of all experts."""
    rows, expert_rows = _rows(dense_bytes), _rows(expert_bytes)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, EMBD)}
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        shapes[f"{stem}.input_layernorm.weight"] = (EMBD,)
        for role in ("gate_proj", "up_proj", "down_proj"):
            if fused and experts:
                shapes[f"{stem}.mlp.experts.{role}"] = (experts, expert_rows, EMBD)
            else:
                shapes |= {f"{stem}.mlp.experts.{i}.{role}.weight": (expert_rows, EMBD) for i in range(experts)}
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "note": 'brackets ]} and "quotes"'}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        entries[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode() + b" " * header_padding
    rng = np.random.default_rng(seed)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        written = [_header(out.tell(), path, out)]
        for name, shape in shapes.items():
            slices = shape[0] if len(shape) == 3 else 0
            kind = "expert" if ".experts." in name else "dense"
            written += _write_slices(out, rng, name, 2 * int(np.prod(shape)), slices, kind)
    return written


def write_mummu_pack(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    experts: int = 4,
    dense_bytes: int = 256 << 10,
    expert_bytes: int = 64 << 10,
    padding: int = 0,
) -> dict[Path, list[Written]]:
    """A mummu pack in `folder` (made if missing): manifest.json, header.gguf, q4.bin and f32.bin.

    q4 scales take an eighth of the values' size and follow them after `padding` bytes; f32 holds norms, without scales.

    Returns: what was written, by blob; header.gguf too.
    """
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    q4: list[tuple[str, object, int]] = [("token_embd", "embedding", dense_bytes)]
    for layer in range(layers):
        q4.append((f"layer{layer}.attn", {"kind": "linear"}, dense_bytes))
        q4 += [
            (f"layer{layer}.e{i}.{proj}", {"kind": "expert", "layer": layer, "index": i, "proj": proj}, expert_bytes)
            for i in range(experts)
            for proj in ("gate", "up", "down")
        ]
    tensors: list[dict[str, object]] = []
    written: dict[Path, list[Written]] = {folder / "q4.bin": [], folder / "f32.bin": []}
    with (folder / "q4.bin").open("wb") as out:
        for name, role, size in q4:
            start, data = out.tell(), rng.bytes(size + padding + size // 8)
            out.write(data)
            kind = "expert" if isinstance(role, dict) and role["kind"] == "expert" else "dense"
            written[folder / "q4.bin"].append(Written(name, start, len(data), kind, zlib.crc32(data)))
            where = {"values_offset": start, "values_len": size}
            where |= {"scales_offset": start + size + padding, "scales_len": size // 8}
            tensors.append({"name": name, "role": role, "shape": [size * 2], "precisions": {"q4": where}})
    with (folder / "f32.bin").open("wb") as out:
        for layer in range(layers):
            name = f"layer{layer}.norm"
            where = {"values_offset": out.tell(), "values_len": 4 * EMBD}
            written[folder / "f32.bin"] += _write_slices(out, rng, name, 4 * EMBD, 0, "dense")
            tensors.append({"name": name, "role": "vector", "shape": [EMBD], "precisions": {"f32": where}})
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "arch": {"n": [1, 2]}, "tensors": tensors}))
    header = folder / "header.gguf"
    header.write_bytes(_gguf_header(_model_tensors(range(layers), experts, dense_bytes, expert_bytes), 3, 32, 32))
    written[header] = [Written("header", 0, header.stat().st_size, "header", zlib.crc32(header.read_bytes()))]
    return written


def write_strata(
    folder: Path, *, seed: int = 0, layers: int = 2, experts: int = 4, expert_bytes: int = 96 << 10
) -> list[Written]:
    """A Strata pack in `folder` (made if missing): native_experts.txt version 3 and experts.bin.

    Args:
        expert_bytes: of one expert's blob (gate, up and down rows together).
    """
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    written, rows = [], []
    with (folder / "experts.bin").open("wb") as out:
        for layer in range(layers):
            rows.append(f"{layer} 8 8 {out.tell()} {expert_bytes} 0 0 0")
            for i in range(experts):
                written += _write_slices(out, rng, f"layer{layer}.expert{i}", expert_bytes, 0, "expert")
        total = out.tell()
    columns = "layer gu_type d_type offset blob_bytes gate_off up_off down_off [shard]"
    comment = f"# strata native experts v3: {columns} (n_expert {experts}, total {total}; absolute offsets in m.gguf)"
    (folder / "native_experts.txt").write_text("\n".join((comment, *rows)) + "\n")
    return written


def write_strata_shard(
    folder: Path, *, name: str = "experts-q8.bin", seed: int = 0, layers: int = 2, experts: int = 4, rows: int = 64
) -> list[Written]:
    """A Strata table beside a plain file that holds the experts: Q8_0 gate, up and down slices of `rows` rows each."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    written, lines, blobs_at = [], [], 0
    size = rows * Q8_0_ROW_BYTES
    with (folder / name).open("wb") as out:
        for layer in range(layers):
            starts = [out.tell() + role * experts * size for role in range(3)]
            lines.append(f"{layer} 8 8 {blobs_at} {3 * size} {starts[0]} {starts[1]} {starts[2]} {name}")
            blobs_at += experts * 3 * size
            for role in ("gate", "up", "down"):
                for i in range(experts):
                    written += _write_slices(out, rng, f"layer{layer}.expert{i}.{role}", size, 0, "expert")
    comment = f"# strata native experts v3 (n_expert {experts}, total {blobs_at}; in the shard {name})"
    (folder / "native_experts.txt").write_text("\n".join((comment, *lines)) + "\n")
    return written


def write_native(
    path: Path, *, seed: int = 0, sizes: Sequence[int] = (200 << 10, 1 << 20, 64 << 10), gap: int = 777
) -> list[Written]:
    """A file of ranges of the given sizes, `gap` bytes of no range before each, and its native manifest beside it."""
    rng = np.random.default_rng(seed)
    written = []
    kinds = ("dense", "expert", "header")
    with path.open("wb") as out:
        for i, size in enumerate(sizes):
            out.write(rng.bytes(gap))
            written += _write_slices(out, rng, f"part {i}", size, 0, kinds[i % 3])
        total = out.tell()
    ranges = [{"offset": w.offset, "length": w.size, "name": w.name, "kind": w.kind} for w in written]
    manifest = {"version": 1, "file": path.name, "size": total, "ranges": ranges}
    path.with_name(path.name + ".mummufs.json").write_text(json.dumps(manifest))
    return written


def _small_gguf(folder: Path) -> tuple[Path, list[Written]]:
    path = folder / "blob"
    return path, write_gguf(path, layers=(0,), experts=2, dense_bytes=2048, expert_bytes=1024, vocabulary=3)


def _small_safetensors(folder: Path) -> tuple[Path, list[Written]]:
    path = folder / "model.safetensors"
    return path, write_safetensors(path, layers=1, experts=2, dense_bytes=2048, expert_bytes=1024)


def _small_mummu(folder: Path) -> tuple[Path, list[Written]]:
    path = folder / "q4.bin"
    return path, write_mummu_pack(folder, layers=1, experts=2, dense_bytes=2048, expert_bytes=1024)[path]


def _small_strata(folder: Path) -> tuple[Path, list[Written]]:
    return folder / "experts.bin", write_strata(folder, layers=2, experts=2, expert_bytes=1056)


def _small_native(folder: Path) -> tuple[Path, list[Written]]:
    path = folder / "anything.dat"
    return path, write_native(path, sizes=(2048, 1024, 512), gap=64)


WRITERS: dict[str, Callable[[Path], tuple[Path, list[Written]]]] = {
    "native": _small_native,
    "mummu": _small_mummu,
    "strata": _small_strata,
    "gguf": _small_gguf,
    "safetensors": _small_safetensors,
}
"""By format: writes a file of some 10 KB into an empty folder; returns the file and its ranges."""
