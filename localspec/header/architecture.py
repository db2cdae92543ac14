"""Per-architecture rules that a GGUF header leaves implicit, as in llama.cpp's `load_arch_hparams`.

Window patterns, shared caches and recurrent blocks follow llama.cpp 0c1e57098 (`src/models/*.cpp`,
`llama_model::create_memory`). Unknown architectures get the plain transformer rule.
"""

from __future__ import annotations

ASSISTANT = "gemma4-assistant"
"""MTP blocks in a file of their own that read the target's cache: nothing but nextn blocks."""

WINDOW_PERIOD = {
    "afmoe": (4, False), "cohere2": (4, False), "cohere2moe": (4, True), "exaone-moe": (4, False),
    "exaone4": (4, False), "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False),
    "gpt-oss": (2, False), "laguna": (4, True), "llama4": (4, False), "mellum": (4, False),
    "muse-glimmer": (4, False), "olmo2": (4, False), "plamo3": (8, False), "smallthinker": (4, True),
}  # fmt: skip
"""architecture -> (every n-th block is global, the period starts with it); the header can override n."""

WINDOW_LISTED = frozenset({
    "dflash", "dots3note", "gemma4", ASSISTANT, "granite_swa", "maple", "mimo2", "spark2_5",
    "step35",
})  # fmt: skip
"""Architectures whose header must list windowed blocks one by one."""

WINDOW_ALL_ATTENTION = frozenset({"lfm2", "lfm2moe"})
"""A window, when given, holds for every attention block."""

DEFAULT_WINDOW = {"gemma2": 4096, "llama4": 8192}

FULL_ATTENTION_INTERVAL = frozenset({"qwen35", "qwen35moe", "qwen3next", "qwen4exp", "minimax-01"})
"""Every n-th block attends, the others are recurrent (`full_attention_interval`, 4 by default)."""

RECURRENT_WITHOUT_KV_HEADS = frozenset({
    "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe",
    "plamo2",
})  # fmt: skip
"""Blocks whose KV head count is 0 are recurrent."""

NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
"""No KV heads and no feed-forward width: recurrent; a feed-forward width: nothing else in the block."""

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

SNAPSHOTS = frozenset({
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp",
})  # fmt: skip
"""Recurrent states that can be kept per token (`n_rs_seq`); elsewhere llama.cpp clamps it to 0."""

MULTI_ROPE = frozenset({
    "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen4exp",
})  # fmt: skip
"""Four position rows per token."""

MULTI_ROPE_WITH_SECTIONS = frozenset({
    "bailingmoe3", "dflash", "glm4", "glm4moe", "hunyuan-dense", "hunyuan_vl",
})  # fmt: skip
"""Four position rows only when the header gives rope sections."""

LAYER_INPUTS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe",
    "llama", "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h",
    "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
})  # fmt: skip
"""Targets whose graph exposes block inputs, which EAGLE-3 and DFlash need natively."""


def period_pattern(n_layer: int, period: int, dense_first: bool) -> list[bool]:
    """Which of `n_layer` blocks are windowed when every `period`-th one is global (0: all windowed)."""
    if period == 0:
        return [True] * n_layer
    if dense_first:
        return [n % period != 0 for n in range(n_layer)]
    return [n % period < period - 1 for n in range(n_layer)]


def window_pattern(architecture: str, n_layer: int, window: int, listed: object) -> list[bool]:
    """Windowed or global for each of the `n_layer` blocks.

    Args:
        window: the header's window, 0 when absent.
        listed: the header's `sliding_window_pattern`: a list, a period, or None.
    """
    nothing = [False] * n_layer
    if architecture in WINDOW_ALL_ATTENTION:
        return [window > 0] * n_layer
    if architecture not in WINDOW_PERIOD and architecture not in WINDOW_LISTED:
        return nothing
    if architecture == "exaone4" and n_layer != 64:  # only the 32B has windows
        return nothing
    if not (window or DEFAULT_WINDOW.get(architecture)):
        return nothing
    if isinstance(listed, list | tuple):
        flags = [bool(flag) for flag in listed[:n_layer]]
        return flags + [False] * (n_layer - len(flags))
    if architecture in WINDOW_LISTED:
        return nothing
    period, dense_first = WINDOW_PERIOD[architecture]
    return period_pattern(n_layer, listed if isinstance(listed, int) else period, dense_first)


def block_kind(architecture: str, index: int, n_layer: int, n_head_kv: int, n_ff: int, interval: int) -> str:
    """`attention`, `recurrent`, `both` or `none` for block `index` of `n_layer` (nextn blocks attend)."""
    if architecture in RECURRENT:
        return "recurrent"
    if index >= n_layer:
        return "attention"
    if architecture == "falcon-h1":
        return "both"
    if architecture in FULL_ATTENTION_INTERVAL:
        return "attention" if (index + 1) % interval == 0 else "recurrent"
    if architecture in RECURRENT_WITHOUT_KV_HEADS:
        return "attention" if n_head_kv else "recurrent"
    if architecture in NEMOTRON:
        return "none" if n_ff else "attention" if n_head_kv else "recurrent"
    return "attention"


def first_shared_block(architecture: str, n_blocks: int, shared: int) -> int:
    """Index of the first block that reads an earlier block's cache (`n_blocks` when none does)."""
    if architecture == "gemma3n":
        return min(20, n_blocks)
    if architecture == "gemma4":
        return n_blocks - min(shared, n_blocks)
    return 0 if architecture == ASSISTANT else n_blocks


def guess_tied(architecture: str, n_embd: int) -> bool:
    """Whether a model without a tensor table at hand has a tied output: some families, and small models."""
    return architecture.startswith(("gemma", "cohere", "command-r")) or 0 < n_embd <= 2048
