"""Chooses what mixes tokens in a block: attention of some kind, a recurrent layer, or both."""

from __future__ import annotations

from localspec.budget.attention import GATED, attention, decompressed_attention, latent_attention
from localspec.budget.builder import Builder
from localspec.budget.recurrent import delta_net, mamba1, mamba2, short_convolution
from localspec.header.facts import Layer

MAMBA1 = ("mamba", "jamba")


def mixer(b: Builder, index: int, layer: Layer, x: int) -> int:
    """The block's mixer on normed input `x` (handle); returns its output, F32 [n_embd, t]."""
    architecture = b.facts.architecture
    if layer.kind == "recurrent":
        if architecture in GATED:
            return delta_net(b, x)
        if architecture in MAMBA1:
            return mamba1(b, x)
        return mamba2(b, x) if b.facts.ssm_inner else short_convolution(b, x)
    if layer.kind == "both":
        recurrent = mamba2(b, x)
        return b.same("hybrid sum", attention(b, index, layer, x), recurrent)
    if b.facts.mla:
        return latent_attention(b, index, layer, x)
    if architecture == "deepseek2":
        return decompressed_attention(b, index, layer, x)
    return attention(b, index, layer, x)
