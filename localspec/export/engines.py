"""A pair for vLLM and SGLang: both load the unquantised repositories."""

from __future__ import annotations

import json
from typing import Any

from localspec.catalog import Drafter, Pair
from localspec.errors import UsageError
from localspec.export.facts import SGLANG, VLLM, VLLM_SPECULATIVE_KEYS
from localspec.export.launch import (
    Builder,
    Launch,
    Wishes,
    draft_length,
    draft_repo,
    method_of,
    target_repo,
    vocabularies_differ,
)

LOOKUP = (2, 5)
"""Shortest and longest n-gram that is looked up; vLLM's own default is five tokens for both."""
LOSSLESS_NOTE = "the unquantised weights are loaded: answers differ from those of the GGUF file"


def vllm(pair: Pair, wishes: Wishes) -> Launch:
    """`vllm serve` with its `--speculative-config`.

    Raises:
        UsageError: vLLM has no such method, or something it needs is not known.
    """
    drafter = pair.drafters[0]
    config = speculative_config(pair, drafter, wishes)
    build = Builder(VLLM, ["vllm", "serve", target_repo(pair, wishes)], [LOSSLESS_NOTE])
    if drafter.kind == "draft" and vocabularies_differ(pair, drafter) is None:
        build.notes.append(
            "vLLM wants vocabularies of one size; if it refuses, add "
            '"use_heterogeneous_vocab": true to the speculative config'
        )
    build.add("--speculative-config", json.dumps(config))
    build.add("--max-model-len", wishes.n_ctx)
    build.add("--gpu-memory-utilization", wishes.gpu_memory)
    build.add("--tensor-parallel-size", wishes.gpus)
    build.add("--max-num-seqs", wishes.parallel)
    build.add("--served-model-name", pair.name)
    build.add("--host", wishes.host)
    build.add("--port", wishes.port)
    return build.launch()


def speculative_config(pair: Pair, drafter: Drafter, wishes: Wishes) -> dict[str, Any]:
    """vLLM's `SpeculativeConfig` for a pair.

    Raises:
        UsageError: as `vllm`.
    """
    config: dict[str, Any] = {"method": method_of(VLLM, pair, drafter)}
    repo = draft_repo(pair, drafter, wishes)
    # A head that was published inside the target's repository is loaded from there by itself.
    if repo is not None and not (drafter.kind == "mtp" and repo == target_repo(pair, wishes)):
        config["model"] = repo
    config["num_speculative_tokens"] = draft_length(VLLM, pair, drafter, wishes)
    if drafter.kind == "ngram":
        config["prompt_lookup_min"], config["prompt_lookup_max"] = LOOKUP
    if drafter.kind == "draft" and vocabularies_differ(pair, drafter):
        config["use_heterogeneous_vocab"] = True
    if not VLLM_SPECULATIVE_KEYS.issuperset(config):
        raise AssertionError(f"vLLM {VLLM.version} knows only {sorted(VLLM_SPECULATIVE_KEYS)}")
    return config


def sglang(pair: Pair, wishes: Wishes) -> Launch:
    """`python -m sglang.launch_server` with its speculative flags.

    Raises:
        UsageError: SGLang has no such method, or something it needs is not known.
    """
    drafter = pair.drafters[0]
    target = target_repo(pair, wishes)
    method = method_of(SGLANG, pair, drafter)
    k = draft_length(SGLANG, pair, drafter, wishes)
    build = Builder(SGLANG, ["python", "-m", "sglang.launch_server"], [LOSSLESS_NOTE])
    build.add("--model-path", target)
    build.add("--speculative-algorithm", method)
    if drafter.kind == "draft":
        _want_one_vocabulary(pair, drafter, build)
    match drafter.kind:
        case "ngram":
            # One of the tokens it verifies is the target's own.
            build.add("--speculative-num-draft-tokens", k + 1)
        case "dflash" | "dflash2":
            build.add("--speculative-draft-model-path", draft_repo(pair, drafter, wishes))
            build.add("--speculative-num-draft-tokens", k + 1)
        case _:
            # MTP layers inside the target are a draft whose path is the target's.
            build.add("--speculative-draft-model-path", draft_repo(pair, drafter, wishes) or target)
            build.add("--speculative-num-steps", k)
            build.add("--speculative-eagle-topk", 1)
            build.add("--speculative-num-draft-tokens", k + 1)
    build.add("--context-length", wishes.n_ctx)
    build.add("--mem-fraction-static", wishes.gpu_memory)
    build.add("--tp-size", wishes.gpus)
    build.add("--max-running-requests", wishes.parallel)
    build.add("--served-model-name", pair.name)
    build.add("--host", wishes.host)
    build.add("--port", wishes.port)
    return build.launch()


def _want_one_vocabulary(pair: Pair, drafter: Drafter, build: Builder) -> None:
    differ = vocabularies_differ(pair, drafter)
    if differ:
        raise UsageError(
            f"SGLang {SGLANG.version} wants vocabularies of one size, and those of `{pair.name}` differ",
            hint="vLLM can bridge them: localspec export vllm",
        )
    if differ is None:
        build.notes.append("SGLang wants vocabularies of one size; it checks that when it loads")
