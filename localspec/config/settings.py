"""Every setting: its key, the field it fills, what its value may be, and one line of help.

A key is the name of the option it stands for in snake case (`--draft-kv` is `draft_kv`; `--no-mmap` is
`mmap = false`; an option that may be repeated is a list). Defaults of engine settings stay with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.config.values import (
    Parser,
    auto_or,
    endpoints,
    flag,
    json_object,
    kv_pair,
    logit_bias,
    number,
    path,
    shares,
    text,
    texts,
    whole,
    word,
)

Section = Literal["app", "load", "sampling", "speculation", "request"]
METHODS = ("auto", "off", "ngram", "draft", "eagle3", "mtp", "dflash", "medusa")
K_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set."""

    key: str
    section: Section
    field: str
    """Field of the section's settings class; of `Config` for `app`."""
    parse: Parser
    help: str

    @property
    def fills(self) -> str:
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"LOCALSPEC_{self.key.upper()}"


def _all(section: Section, *rows: tuple[str, Parser, str] | tuple[str, str, Parser, str]) -> list[Setting]:
    found = []
    for row in rows:
        key, field, parse, line = row if len(row) == 4 else (row[0], *row)
        found.append(Setting(key, section, field, parse, line))
    return found


_LISTED = [
    *_all(
        "app",
        ("default_pair", text, "pair that commands without one use"),
        ("models_dir", path, "where models are kept"),
        ("theme", text, "theme of the chat screen"),
        ("notices", flag, "show why speculation pauses, resumes or was adjusted"),
        ("host", text, "address the server listens on"),
        ("port", whole(1, 65535), "port the server listens on"),
    ),
    *_all(
        "load",
        ("ctx", "n_ctx", auto_or(1), "context length in tokens; auto: the trained one, at most 8192"),
        ("gpu_layers", auto_or(0), "target layers on the GPU; auto: all that fit"),
        ("draft_gpu_layers", auto_or(0), "draft layers on the GPU"),
        ("kv", kv_pair, "types of the target's KV cache"),
        ("draft_kv", kv_pair, "types of the draft's KV cache"),
        ("mmap", flag, "map the files instead of reading them"),
        ("mlock", flag, "keep the weights from being swapped out"),
        ("threads", auto_or(1, 4096), "CPU threads; auto: the physical cores"),
        ("batch", "n_batch", whole(1), "prompt tokens per decode call"),
        ("ubatch", "n_ubatch", whole(1), "rows the backend computes at once"),
        ("flash_attn", word(("auto", "on", "off")), "flash attention"),
        ("device", text, "device of the target, as `localspec doctor` lists it"),
        ("draft_device", text, "device of the draft; the target's by default"),
        ("tensor_split", shares, "share of the model per GPU"),
        ("n_cpu_moe", whole(0), "first blocks whose expert tensors stay in host memory"),
        ("rpc", endpoints, "ggml RPC servers whose devices join"),
        (
            "slots",
            whole(1, 256),
            "requests answered at once, each with a context and cache of its own; a head drafts for one",
        ),
        ("k_max", whole(1, K_LIMIT), "longest draft of a round unless a request fixes a larger k"),
    ),
    *_all(
        "sampling",
        ("temperature", number(0), "0 is greedy"),
        ("top_k", whole(0), "keep the k most likely tokens; 0 is off"),
        ("top_p", number(0, 1), "keep tokens up to this cumulated probability; 1 is off"),
        ("min_p", number(0, 1), "drop tokens below this share of the likeliest; 0 is off"),
        ("typical_p", number(0, 1), "locally typical; 1 is off"),
        ("repeat_last_n", whole(-1), "tokens the penalties look at; -1: all"),
        ("repeat_penalty", number(0.01), "penalty on repeats; 1 is off"),
        ("presence_penalty", number(), "penalty on having occurred; 0 is off"),
        ("frequency_penalty", number(), "penalty per occurrence; 0 is off"),
        ("dry_multiplier", number(0), "strength of DRY; 0 is off"),
        ("dry_base", number(1), "base of DRY's growth"),
        ("dry_allowed_length", whole(0), "repeats DRY leaves alone"),
        ("dry_penalty_last_n", whole(-1), "tokens DRY looks at; -1: all"),
        ("dry_sequence_breakers", texts, "texts that end a repeat for DRY"),
        ("xtc_probability", number(0, 1), "chance of XTC per token; 0 is off"),
        ("xtc_threshold", number(0, 1), "probability from which XTC removes"),
        ("logit_bias", logit_bias, "added to logits: 15043+1, 2-inf"),
        ("grammar", text, "GBNF grammar replies must follow"),
        ("json_schema", json_object, "JSON schema replies must follow"),
        ("seed", whole(0, 2**32 - 1), "makes sampled replies repeatable"),
    ),
    *_all(
        "speculation",
        ("method", word(METHODS), "how to draft"),
        ("k", auto_or(0, K_LIMIT), "draft length; a number fixes it and never pauses"),
        ("verify", word(("auto", "match", "rejection")), "how sampled drafts are judged"),
        ("p_min", number(0, 1), "confidence below which a draft stops; 0 is off"),
        ("tuned", flag, "start `auto` from what `localspec bench --tune` stored"),
        ("require_spec", "require", flag, "fail when the pair cannot speculate"),
    ),
    *_all("request", ("max_tokens", whole(1), "longest reply in tokens")),
]
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in _LISTED}
"""Key -> setting, in the order they are shown."""
