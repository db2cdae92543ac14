"""What the memory budget and the pairing check need to know about a model, in one frozen value.

`ModelFacts` comes from a GGUF header (`header_facts`) or from the catalogue (`catalogue_facts`) and
survives a round trip through JSON, so that a remote header has to be read once only.
Knows shapes and bytes; nothing of settings, devices or formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

LayerKind = Literal["attention", "recurrent", "both", "none"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the model."""

    kind: LayerKind
    """What mixes tokens: `none` is a block with a feed-forward part only (Nemotron-H)."""
    n_head: int
    n_head_kv: int
    head_k: int
    """Elements of one cached K head; with MLA the compressed width."""
    head_v: int
    windowed: bool = False
    """True when attention sees a sliding window only."""
    own_kv: bool = True
    """False when the block reads the cache of an earlier one (Gemma 3n, Gemma 4 E-series)."""
    n_ff: int = 0
    """Width of the dense feed-forward part, 0 when there is none."""
    n_ff_shared: int = 0
    """Width of the shared expert, 0 when there is none."""
    experts: bool = False
    weight_bytes: int = 0
    """All tensors of the block but its routed experts."""
    expert_bytes: int = 0
    """Routed experts (`ffn_*_exps`) of the block."""
    expert_tensor_bytes: int = 0
    """The largest single expert tensor."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as the budget sees it. Sizes in bytes, widths in elements; 0 = the model has none."""

    name: str
    architecture: str
    size_bytes: int
    """Size of the file(s)."""
    file_type: str
    """Quantisation label (`Q4_K_M`), or empty."""
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    n_layer: int
    """Blocks of the model proper, without nextn (MTP) blocks."""
    n_nextn: int
    layers: tuple[Layer, ...]
    """`n_layer + n_nextn` blocks; none for Medusa heads."""
    window: int = 0
    mla: bool = False
    """Multi-head latent attention: only the compressed K is cached, no V."""
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_dim: int = 0
    mla_head_k: int = 0
    mla_head_v: int = 0
    state_r: int = 0
    """F32 elements of one recurrent block's convolution state, per sequence."""
    state_s: int = 0
    """F32 elements of one recurrent block's state matrix, per sequence."""
    ssm_conv: int = 0
    ssm_inner: int = 0
    ssm_state: int = 0
    ssm_groups: int = 0
    ssm_heads: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    tied: bool = False
    """No output matrix of its own: the embedding serves, and is paid twice when the output is on a GPU."""
    embedding_bytes: int = 0
    output_bytes: int = 0
    """Output matrix and norm, without the tied copy."""
    host_bytes: int = 0
    """What always stays in host memory: per-layer embeddings, residual blocks of Medusa heads (as F32)."""
    n_embd_per_layer: int = 0
    base_models: tuple[str, ...] = ()
    target_layers: tuple[int, ...] = ()
    """EAGLE-3 / DFlash: the target's layer inputs that feed the head."""
    target_hidden: int = 0
    block_size: int = 0
    """DFlash: longest block."""
    conv_kernel: int = 0
    """DFlash2: taps of the convolutions around attention and feed-forward part."""
    conv_group: int = 0
    n_draft_vocab: int = 0
    """EAGLE-3: rows of a reduced output matrix, 0 when it covers the vocabulary."""
    head_matrices: tuple[int, ...] = ()
    """Medusa: bytes of each head's own output matrix, 0 where it uses the target's."""
    own_embedding: bool = True
    own_output: bool = True
    """False when the head borrows the target's matrix."""
    features: frozenset[str] = frozenset()
    """Marks of the compute graph, such as `fused_qkv`; see `header_facts.FEATURES`."""
    estimated: bool = False
    """True when per-block bytes are derived from the file size (catalogue), not read."""
    unknown: tuple[str, ...] = ()
    """Facts that are missing; the plan then says `unknown`."""

    @property
    def recurrent(self) -> bool:
        """True when rolling back needs more than dropping cells."""
        return any(layer.kind in ("recurrent", "both") for layer in self.layers[: self.n_layer])

    @property
    def windowed(self) -> bool:
        return any(layer.windowed for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """A plain mapping that `from_json` turns back into an equal value."""
        raw = asdict(self)
        raw["features"] = sorted(self.features)
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ModelFacts:
        """Rebuild from `to_json`.

        Raises:
            ValueError: the mapping was written by another version (a cache: read the header again).
        """
        known = {f.name for f in fields(cls)}
        if set(raw) != known:
            raise ValueError(f"stored facts differ in {sorted(set(raw) ^ known)}")
        values = dict(raw)
        values["layers"] = tuple(Layer(**layer) for layer in raw["layers"])
        for key in ("base_models", "target_layers", "head_matrices", "unknown"):
            values[key] = tuple(raw[key])
        values["features"] = frozenset(raw["features"])
        return cls(**values)
