"""The sizes a context is created with, and the rules of the llama.cpp build that creates it."""

from __future__ import annotations

from dataclasses import dataclass

KV_BYTES = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22),
    "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}  # fmt: skip
"""KV cache type -> (elements per block, bytes per block)."""


def row_bytes(kv_type: str, elements: int) -> int:
    """Bytes of one cache row; ggml rows are whole blocks."""
    block, size = KV_BYTES[kv_type]
    return -(-elements // block) * size


def pad(value: int, step: int = 256) -> int:
    """`value` rounded up to a multiple of `step` (llama.cpp pads contexts and caches to 256 cells)."""
    return -(-value // step) * step


def mtp_outputs(k_max: int, layers: int, *, assistant: bool = False) -> int:
    """Rows of one decode of an MTP context whose logits its drafter may want.

    An assistant takes one step at a time. A single layer reads what a round committed, at most k_max + 1
    pairs, and a text's first one. Of several layers each drafts one token at most, and reads beside the
    committed pairs what the layers before it drafted.
    """
    if assistant:
        return 1
    return k_max + 2 if layers <= 1 else 2 * min(k_max, layers) + 1


@dataclass(frozen=True, slots=True)
class Build:
    """What differs between llama.cpp builds; the defaults are the pinned one (0c1e57098).

    The others exist because public load logs, against which the formulas are tested, are older.
    """

    mask_f16: bool = True
    """FA masks are f16 (from mid 2026); they were f32 and copied to f16 on the device before."""
    idle_embd_input: bool = True
    """The unused embedding input is part of the graph (from 2026)."""
    index_inputs: bool = True
    """Cache rows are addressed through index inputs (from mid 2025)."""
    mla_caches_v: bool = False
    """MLA stores the compressed V beside K (mid 2025)."""
    output_counts_as_layer: bool = True
    """`-ngl N` puts the output and N-1 blocks on the GPU (2026) instead of N blocks."""
    windowed_cache: bool = True
    """Windowed blocks have a cache of window size (from mid 2025)."""
    rotated_caches: bool = True
    """Quantised caches are stored rotated (from 2026)."""
    fused_glu: bool = True
    """Gate and up go through one fused operation (from mid 2025) instead of two in place."""


CURRENT = Build()


@dataclass(frozen=True, slots=True)
class ContextShape:
    """One llama.cpp context, all numbers as llama.cpp settles them (`ContextShape.of`)."""

    n_ctx: int
    """Cells over all sequences, padded."""
    n_ctx_seq: int
    n_seq: int
    unified: bool
    n_batch: int
    n_ubatch: int
    n_outputs: int
    """Rows that can be outputs in one micro-batch."""
    n_rs_seq: int
    """Snapshots of recurrent state beyond the current one."""
    flash: bool
    type_k: str
    type_v: str
    swa_full: bool
    offload_kv: bool = True
    read_ubatch: int = 0
    """Micro-batch of the context whose cache this one reads; 0 = it has its own."""

    @classmethod
    def of(
        cls,
        n_ctx: int,
        *,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_outputs_max: int = 0,
        n_seq: int = 1,
        unified: bool = True,
        n_rs_seq: int = 0,
        flash: bool = True,
        kv: tuple[str, str] = ("f16", "f16"),
        swa_full: bool = True,
        offload_kv: bool = True,
        read_ubatch: int = 0,
    ) -> ContextShape:
        """Settle requested numbers as `llama_context::llama_context` does.

        Args:
            n_outputs_max: 0 = every token of a batch.
        """
        n_seq = max(n_seq, 1)
        n_batch = max(min(n_batch, n_ctx), 1)
        n_ubatch = min(n_batch, n_ubatch or n_batch)
        padded = pad(max(n_ctx, 1))
        per_seq = padded if unified else pad(max(padded // n_seq, 1))
        n_ctx = padded if unified else per_seq * n_seq
        tokens = min(n_ctx, n_ubatch)
        return cls(
            n_ctx=n_ctx,
            n_ctx_seq=per_seq,
            n_seq=n_seq,
            unified=unified,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_outputs=min(tokens, n_outputs_max or n_batch),
            n_rs_seq=n_rs_seq,
            flash=flash,
            type_k=kv[0],
            type_v=kv[1],
            swa_full=swa_full,
            offload_kv=offload_kv,
            read_ubatch=read_ubatch,
        )

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case micro-batch, a multiple of the sequences."""
        return -(-min(self.n_ctx, self.n_ubatch) // self.n_seq) * self.n_seq

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.n_seq

    def cells(self, windowed: bool, window: int) -> int:
        """Cells per stream of a global or windowed cache (`llama_kv_cache_iswa`)."""
        if not windowed or self.swa_full:
            return self.n_ctx_seq
        wanted = window * (self.n_seq if self.unified else 1) + (self.read_ubatch or self.n_ubatch)
        return pad(min(self.n_ctx_seq, wanted))
