"""Writes trained weights as the GGUF files that localspec loads: quantised, and bound to their target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.selftest.medusa import FORMAT_VERSION, tokenizer_digest
from training.target import Floats, TargetFacts, copy_tokenizer

Weights = dict[str, Floats]
"""A module's parameters by PyTorch name, float32."""


@dataclass(slots=True)
class HeadFile:
    """A GGUF in the making."""

    writer: Any
    quantization: str

    def keys(self, **values: Any) -> None:
        """Architecture keys, `a__b` standing for `<arch>.a.b`."""
        for name, value in values.items():
            key = f"{self.writer.arch}.{name.replace('__', '.')}"
            if isinstance(value, bool):
                self.writer.add_bool(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            elif isinstance(value, str):
                self.writer.add_string(key, value)
            else:
                self.writer.add_array(key, value)

    def bind(self, facts: TargetFacts) -> None:
        """Name the target; localspec refuses another tokenizer or architecture."""
        digest = tokenizer_digest(facts.tokens)
        self.keys(
            target__name=facts.name, target__architecture=facts.architecture, target__tokenizer_digest=digest
        )

    def matrix(self, name: str, values: Floats, quantization: str | None = None) -> None:
        """Quantised when its rows are whole blocks, else F16."""
        import gguf

        kind = gguf.GGMLQuantizationType[quantization or self.quantization]
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if values.shape[1] % block:
            kind = gguf.GGMLQuantizationType.F16
        packed = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)
        self.writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)

    def vector(self, name: str, values: NDArray[Any]) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values))


@contextmanager
def head_file(path: Path, architecture: str, name: str, quantization: str) -> Iterator[HeadFile]:
    """A new GGUF that gets its name only when it is whole."""
    import gguf

    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, architecture)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    yield HeadFile(writer, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def write_eagle3(
    path: Path,
    facts: TargetFacts,
    weights: Weights,
    unembedding: Floats,
    ids: NDArray[np.int64],
    quantization: str,
    table: str,
) -> None:
    """Parameters of an `eagle3.Eagle3`, and the target's output rows of `ids`.

    Args:
        table: ggml type of those rows, which are most of the file.
    """
    with head_file(path, "eagle3", f"{facts.name} EAGLE-3", quantization) as file:
        file.bind(facts)
        file.writer.add_tokenizer_model("none")
        file.keys(
            vocab_size=facts.n_vocab, context_length=facts.n_ctx, embedding_length=facts.width, block_count=1,
            feed_forward_length=len(weights["ff.gate.weight"]), attention__head_count=facts.n_head,
            attention__head_count_kv=facts.n_head_kv, attention__layer_norm_rms_epsilon=facts.eps,
            rope__dimension_count=facts.head_size, rope__freq_base=facts.rope_base,
            target_layers=list(facts.layers), target_hidden_size=facts.width,
            norm_before_residual=False, norm_before_fc=True,
        )  # fmt: skip
        file.vector("enc.output_norm.weight", weights["feature_norm.weight"])
        file.matrix("fc", weights["fc.weight"])
        file.vector("blk.0.attn_norm.weight", weights["token_norm.weight"])
        file.vector("blk.0.attn_norm_2.weight", weights["state_norm.weight"])
        _layer(file, weights, "blk.0")
        file.vector("output_norm.weight", weights["output_norm.weight"])
        file.matrix("output", unembedding[ids], table)
        file.vector("d2t", ids.astype(np.int64))


def _layer(file: HeadFile, weights: Weights, block: str, source: str = "") -> None:
    """Attention and feed-forward of one llama layer, without the norm in front of it."""
    for ours, name in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("output", "attn_output")):
        file.matrix(f"{block}.{name}", weights[f"{source}attention.{ours}.weight"])
    file.vector(f"{block}.ffn_norm.weight", weights[f"{source}ff_norm.weight"])
    for name in ("gate", "up", "down"):
        file.matrix(f"{block}.ffn_{name}", weights[f"{source}ff.{name}.weight"])


def write_medusa(path: Path, facts: TargetFacts, weights: Weights, quantization: str) -> None:
    """Parameters of a `medusa.Medusa`, in the format of `localspec.selftest.medusa`."""
    linear = sorted(name.removesuffix(".weight") for name in weights if name.endswith(".weight"))
    heads = 1 + max(int(name.split(".")[1]) for name in linear)
    with head_file(path, "medusa", f"{facts.name} Medusa", quantization) as file:
        file.bind(facts)
        file.keys(
            format_version=FORMAT_VERSION, block_count=heads, residual_block_count=len(linear) // heads,
            embedding_length=facts.width, vocab_size=facts.n_vocab,
        )  # fmt: skip
        for name in linear:
            _, head, block = name.split(".")
            file.matrix(f"head.{head}.{block}", weights[f"{name}.weight"])
            file.vector(f"head.{head}.{block}.bias", weights[f"{name}.bias"].astype(np.float32))


def write_draft(
    path: Path,
    facts: TargetFacts,
    weights: Weights,
    target: Path,
    quantization: str,
    table: str,
    *,
    head_size: int,
) -> None:
    """Parameters of a `draft.SmallLlama` with the tokenizer of the `target` file.

    Args:
        table: ggml type of the embedding, which is most of the file.
    """
    n_vocab, width = weights["embedding.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    with head_file(path, "llama", f"{facts.name} draft", quantization) as file:
        copy_tokenizer(target, file.writer)
        file.keys(
            vocab_size=n_vocab, context_length=facts.n_ctx, embedding_length=width, block_count=layers,
            feed_forward_length=len(weights["layers.0.ff.gate.weight"]),
            attention__head_count=width // head_size, attention__head_count_kv=width // head_size,
            attention__layer_norm_rms_epsilon=facts.eps, rope__dimension_count=head_size,
            rope__freq_base=facts.rope_base,
        )  # fmt: skip
        file.matrix("token_embd", weights["embedding.weight"], table)
        file.vector("output_norm.weight", weights["output_norm.weight"])
        for i in range(layers):
            norm = weights[f"layers.{i}.attention_norm.weight"]
            file.vector(f"blk.{i}.attn_norm.weight", norm)
            _layer(file, weights, f"blk.{i}", f"layers.{i}.")
