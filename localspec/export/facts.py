"""What other engines accept, read from their own argument definitions, with version and date.

`scripts/check_export_facts` compares these tables with a wheel or source package of the engine; run it when
a version here is raised. A flag or method that is not in a table is never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from localspec.catalog import PairKind


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine as of one version."""

    name: str
    version: str
    checked: str
    """Date of the comparison, ISO."""
    source: str
    """Where its arguments are defined."""
    flags: frozenset[str]
    """Those that are written here."""
    methods: Mapping[PairKind, str]
    """Our kind of draft → the engine's name for the method; a kind that is absent does not exist there."""
    default_k: Mapping[PairKind, int]
    """Draft length where the pair names none; a kind that is absent needs one."""


VLLM = Engine(
    name="vLLM",
    version="0.33.0",
    checked="2026-12-01",
    source="vllm/engine/arg_utils.py and vllm/config/speculative.py in the wheel",
    flags=frozenset(
        {
            "--gpu-memory-utilization",
            "--host",
            "--max-model-len",
            "--max-num-seqs",
            "--port",
            "--served-model-name",
            "--speculative-config",
            "--tensor-parallel-size",
        }
    ),
    # Medusa heads were supported until 2026; the Literal `SpeculativeMethod` no longer has them.
    methods={
        "draft": "draft_model",
        "ngram": "ngram",
        "mtp-inside": "mtp",
        "mtp": "mtp",
        "eagle3": "eagle3",
        "dflash": "dflash",
        "dflash2": "dflash",
    },
    default_k={"draft": 5, "ngram": 5, "eagle3": 3, "mtp": 1, "mtp-inside": 1},
)
VLLM_SPECULATIVE_KEYS = frozenset(
    {
        "method",
        "model",
        "num_speculative_tokens",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "use_heterogeneous_vocab",
    }
)
"""Fields of `SpeculativeConfig` that are written here."""

SGLANG = Engine(
    name="SGLang",
    version="0.5.23",
    checked="2026-12-01",
    source="sglang/srt/arg_groups/fields/*.py in the wheel",
    flags=frozenset(
        {
            "--context-length",
            "--host",
            "--max-running-requests",
            "--mem-fraction-static",
            "--model-path",
            "--port",
            "--served-model-name",
            "--speculative-algorithm",
            "--speculative-draft-model-path",
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
            "--speculative-num-steps",
            "--tp-size",
        }
    ),
    methods={
        "draft": "STANDALONE",
        "ngram": "NGRAM",
        "mtp-inside": "NEXTN",
        "mtp": "NEXTN",
        "eagle3": "EAGLE3",
        "dflash": "DFLASH",
        "dflash2": "DFLASH",
    },
    default_k={"draft": 5, "ngram": 5, "eagle3": 3, "mtp": 1, "mtp-inside": 1},
)

LLAMA_SERVER = Engine(
    name="llama-server",
    version="llama.cpp 0c1e57098 (in llama-cpp-python 0.3.36)",
    checked="2026-12-01",
    source="common/arg.cpp and common/speculative.cpp",
    flags=frozenset(
        {
            "--alias",
            "--batch-size",
            "--cache-type-k",
            "--cache-type-v",
            "--ctx-size",
            "--device",
            "--flash-attn",
            "--gpu-layers",
            "--hf-file",
            "--hf-repo",
            "--host",
            "--load-mode",
            "--model",
            "--n-cpu-moe",
            "--parallel",
            "--port",
            "--rpc",
            "--spec-draft-device",
            "--spec-draft-hf",
            "--spec-draft-model",
            "--spec-draft-n-max",
            "--spec-draft-ngl",
            "--spec-draft-type-k",
            "--spec-draft-type-v",
            "--spec-ngram-simple-size-m",
            "--spec-type",
            "--tensor-split",
            "--threads",
            "--ubatch-size",
        }
    ),
    methods={
        "draft": "draft-simple",
        "ngram": "ngram-simple",
        "mtp-inside": "draft-mtp",
        "mtp": "draft-mtp",
        "eagle3": "draft-eagle3",
        "dflash": "draft-dflash",
        "dflash2": "draft-dflash",
    },
    # llama-server has defaults of its own for every method.
    default_k={},
)
RPC_SERVER_FLAGS = frozenset({"--host", "--port", "--cache"})
"""Flags of `ggml-rpc-server` (tools/rpc/rpc-server.cpp of the same llama.cpp)."""
