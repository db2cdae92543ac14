"""What can be asked of the engine: frozen, picklable values, validated once at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Method = Literal["auto", "off", "ngram", "draft", "eagle3", "mtp", "dflash", "medusa"]
METHODS: tuple[Method, ...] = ("auto", "off", "ngram", "draft", "eagle3", "mtp", "dflash", "medusa")
VerifyRule = Literal["auto", "match", "rejection"]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]

K_MAX = 16
"""Longest draft of a round unless a request fixes a larger k."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How the models are put into memory; changing one needs a reload."""

    n_ctx: int | None = None
    """Context length in tokens; None = the model's trained length, at most 8192."""
    gpu_layers: int | None = None
    """Target layers on the GPU, output layer included; None = all that fit (`auto`)."""
    draft_gpu_layers: int | None = None
    kv: tuple[KvType, KvType] = ("f16", "f16")
    """Types of K and V of the target."""
    draft_kv: tuple[KvType, KvType] = ("f16", "f16")
    mmap: bool = True
    mlock: bool = False
    threads: int | None = None
    """CPU threads for decoding and verifying; None = physical cores."""
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: FlashAttention = "auto"
    device: str | None = None
    """Name of the target's device as `localspec doctor` lists it; None = llama.cpp's choice."""
    draft_device: str | None = None
    """The same of the draft; None = the target's."""
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    """Expert tensors of this many first blocks stay in host memory."""
    rpc: tuple[str, ...] = ()
    """`host:port` of ggml RPC servers whose devices join this machine's."""
    k_max: int = K_MAX
    slots: int = 1
    """Requests answered at once, each with a context of `n_ctx` tokens and a prompt cache of its own."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The sampler chain, by llama.cpp's names and defaults."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added logit); -inf bans a token."""
    grammar: str | None = None
    """GBNF."""
    json_schema: str | None = None
    """JSON text of a schema, turned into a grammar at load of the request."""
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Which drafter, how long, judged how."""

    method: Method = "auto"
    k: int | None = None
    """Fixed draft length (never pauses), or None for the adaptive policy."""
    verify: VerifyRule = "auto"
    p_min: float = 0.0
    """Confidence below which a greedy draft stops; 0 = off."""
    tuned: bool = True
    """`auto` starts from what `localspec bench --tune` found fastest here."""
    require: bool = False
    """Fail instead of decoding plainly when speculation is impossible."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `extra` carries template fields such as tool_calls or name."""

    role: str
    content: str
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to produce: chat messages through the template, or a raw prompt."""

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    """Raw text without a template; exclusive with `messages`."""
    sampling: SamplingSettings = SamplingSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """None = off; N = log-probability of each token and the N most likely ones."""
    prediction: str | None = None
    """Text the reply is expected to resemble; feeds the n-gram drafter."""
    template_args: tuple[tuple[str, Any], ...] = ()
    tools: tuple[Any, ...] = ()
    """OpenAI tool definitions, passed to the template unchanged."""
    continue_last: bool = False
    """The last message is an unfinished assistant turn to be continued."""
    ignore_eog: bool = False
    """Go on after an end-of-generation token (benchmarks)."""
    cache_key: str | None = None
    """Conversation this request belongs to, for reuse of the prompt cache."""
