"""Writes trained weights as the GGUF files that localspec loads: quantised, and bound to their target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.selftest.medusa import FORMAT_VERSION, tokenizer_digest
from training.target import Floats, TargetFacts, copy_tokenizer

Weights = dict[str, Floats]
"""A module's parameters by PyTorch name, float32."""

_OUTSIDE = {
    "feature_norm": "enc.output_norm",
    "fc": "fc",
    "embedding": "token_embd",
    "output_norm": "output_norm",
}
_IN_LAYER = {
    "token_norm": "attn_norm", "state_norm": "attn_norm_2", "attention_norm": "attn_norm",
    "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v",
    "attention.output": "attn_output", "ff_norm": "ffn_norm", "ff.gate": "ffn_gate", "ff.up": "ffn_up",
    "ff.down": "ffn_down",
}  # fmt: skip


def tensor_name(parameter: str) -> str:
    """What the files call a parameter of our modules: `layers.2.ff.up.weight` is `blk.2.ffn_up.weight`."""
    module, _, kind = parameter.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    if module.startswith("heads."):
        return f"head.{module.removeprefix('heads.')}.{kind}"
    if not module.startswith("layers."):
        return f"blk.0.{_IN_LAYER[module]}.{kind}"
    _, layer, module = module.split(".", 2)
    return f"blk.{layer}.{_IN_LAYER[module]}.{kind}"


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
        self.writer.add_tensor(name, packed, raw_dtype=kind)

    def vector(self, name: str, values: NDArray[Any]) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values))

    def parameters(self, weights: Weights, quantization: Mapping[str, str] = MappingProxyType({})) -> None:
        """All of a module's; tensors in `quantization` have a ggml type of their own."""
        for parameter, values in weights.items():
            name = tensor_name(parameter)
            if values.ndim == 1:
                self.vector(name, values)
            else:
                self.matrix(name, values, quantization.get(name))


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
        file.parameters(weights)
        file.matrix("output.weight", unembedding[ids], table)
        file.vector("d2t", ids.astype(np.int64))


def write_medusa(path: Path, facts: TargetFacts, weights: Weights, quantization: str) -> None:
    """Parameters of a `medusa.Medusa`, in the format of `localspec.selftest.medusa`."""
    linear = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    heads = 1 + max(int(name.split(".")[1]) for name in linear)
    with head_file(path, "medusa", f"{facts.name} Medusa", quantization) as file:
        file.bind(facts)
        file.keys(
            format_version=FORMAT_VERSION, block_count=heads, residual_block_count=len(linear) // heads,
            embedding_length=facts.width, vocab_size=facts.n_vocab,
        )  # fmt: skip
        file.parameters(weights)


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
        file.parameters(weights, {"token_embd.weight": table})
