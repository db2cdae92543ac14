"""Time of a speculative round that is not llama.cpp's decoding.

A tiny target with a vocabulary of real size drafts for itself, so that all five drafts are accepted and
every row is judged: the most the loop ever does in a round. The native calls `llama_decode`,
`llama_encode` and `llama_synchronize` are wrapped with a clock, and `llama_get_logits` as the place where
localspec calls the last one: it synchronises and returns an address. What is left of a round's wall time
(from one round's event to the next, the consumer's part not counted) is ours: drafting's arithmetic,
sampling, verdicts, rollback and events. Medians over rounds. With a fixed k nobody asks how sure a greedy
draft is; `with confidence` is the same with a floor, as the adaptive policy has one. The share of a round is
that of SmolLM2, whose rounds are short; on larger models it is smaller.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from localspec.engine.backend import batch, context, library  # noqa: E402
from localspec.engine.events import Prefill, Round  # noqa: E402
from localspec.engine.settings import (  # noqa: E402
    LoadSettings,
    Message,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from localspec.interfaces import Companion, PairFiles  # noqa: E402
from localspec.pairs import resolve  # noqa: E402
from localspec.selftest.targets import Shape, Target, write_llama  # noqa: E402
from localspec.selftest.vocab import TEXT  # noqa: E402
from localspec.selftest.weights import Draw  # noqa: E402
from localspec.session import open_session  # noqa: E402
from localspec.workloads import WORKLOADS  # noqa: E402

VOCABULARIES = {"49k": 49_152, "151k": 151_936}
K = 5
GREEDY = SamplingSettings(temperature=0.0)
SAMPLED = SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.0)
BUDGET_MS = {"greedy": 0.5, "sampled": 2.0}
_TIMED = ("llama_decode", "llama_encode", "llama_synchronize", "llama_get_logits")
_NATIVE_IN = (batch, context)


class NativeClock:
    """Seconds spent inside the wrapped native calls.

    What wrapping costs is counted as ours: some 30 µs of a round, since caches are cold here.
    """

    def __init__(self) -> None:
        self._stamps: list[float] = []
        """Before and after, of calls not yet in the total."""
        self._total = 0.0

    @property
    def seconds(self) -> float:
        stamps = self._stamps
        self._total += sum(after - before for before, after in zip(stamps[::2], stamps[1::2], strict=True))
        stamps.clear()
        return self._total

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        now, note = time.perf_counter, self._stamps.append

        def timed(*arguments: Any) -> Any:
            note(now())
            result = call(*arguments)
            note(now())
            return result

        return timed


@contextmanager
def native_clock() -> Iterator[NativeClock]:
    """Contexts made in this block time their native decodes."""
    clock, untimed = NativeClock(), library.native

    def native(name: str, restype: Any, *argtypes: Any) -> Any:
        function = untimed(name, restype, *argtypes)
        return clock.around(function) if name in _TIMED else function

    try:
        for module in _NATIVE_IN:
            vars(module)["native"] = native
        yield clock
    finally:
        for module in _NATIVE_IN:
            vars(module)["native"] = untimed


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians of one setting."""

    ms_per_round: float
    share: float
    """Of the round's wall time."""
    rounds: int
    accepted_per_round: float


def measure(
    files: PairFiles,
    sampling: SamplingSettings,
    tokens: int,
    prompt: str,
    method: str = "draft",
    floor: float = 0.0,
) -> Overhead:
    """Overhead of the rounds of one reply that drafted, the first ones left out."""
    ours: list[float] = []
    shares: list[float] = []
    accepted: list[int] = []
    with native_clock() as clock:
        session = open_session(files, LoadSettings(n_ctx=2048, threads=1))
        try:
            request = Request(
                messages=(Message("user", prompt),),
                sampling=sampling,
                speculation=SpeculationSettings(method=method, k=K, p_min=floor),  # type: ignore[arg-type]
                max_tokens=tokens,
                ignore_eog=True,
            )
            inside = clock.seconds
            for event in session.reply(request):
                if isinstance(event, Round):
                    wall = event.draft_s + event.verify_s + event.other_s
                    native_s = clock.seconds - inside
                    if event.drafted == K:
                        ours.append(wall - native_s)
                        shares.append((wall - native_s) / wall)
                        accepted.append(event.accepted)
                if isinstance(event, Prefill | Round):
                    inside = clock.seconds
        finally:
            session.close()
    skip = min(5, len(ours) // 2)
    if not ours:
        raise SystemExit(f"error: no round of `{files.name}` drafted {K} tokens")
    return Overhead(
        1000 * statistics.median(ours[skip:]),
        statistics.median(shares[skip:]),
        len(ours) - skip,
        statistics.mean(accepted),
    )


def wide_target(folder: Path, n_vocab: int) -> PairFiles:
    """A tiny target with `n_vocab` ids, and itself as its draft."""
    live = TEXT.readable[:32]
    vocabulary = TEXT.padded(n_vocab - len(TEXT))
    path = folder / f"wide-{n_vocab}.gguf"
    shape = Shape(width=64, layers=1, n_ctx=4096)
    write_llama(path, Target(path.stem, Draw(seed=5), vocabulary, shape, live=live))
    return PairFiles(path.stem, path, (Companion("draft", path),))


def report(tokens: int) -> dict[str, Any]:
    """All figures as one JSON object."""
    prompt, found = "Count the stars.", {}
    with tempfile.TemporaryDirectory() as folder:
        for label, n_vocab in VOCABULARIES.items():
            files = wide_target(Path(folder), n_vocab)
            for kind, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
                overhead = measure(files, sampling, tokens, prompt)
                found[f"{kind}_ms_per_round_{label}"] = overhead.ms_per_round
                found[f"{kind}_accepted_per_round_{label}"] = overhead.accepted_per_round
            sure = measure(files, GREEDY, tokens, prompt, floor=1e-9)
            found[f"greedy_with_confidence_ms_per_round_{label}"] = sure.ms_per_round
    demo = resolve("demo")
    edit = next(w for w in WORKLOADS if w.name == "edit").prompts[0]
    for kind, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        overhead = measure(demo, sampling, min(tokens, 200), edit, "ngram")
        found[f"{kind}_ms_per_round_smollm2"] = overhead.ms_per_round
        found[f"{kind}_share_of_round"] = overhead.share
    return {"k": K, "sampling": "temperature 0.8, top-k 40, top-p 0.95"} | found


def human(found: dict[str, Any]) -> str:
    lines = [f"outside native decoding, k = {K}, all drafts accepted, draft model included:"]
    for kind in BUDGET_MS:
        lines += [
            f"  {kind:8}{label:>5}: {found[f'{kind}_ms_per_round_{label}']:.3f} ms per round"
            for label in VOCABULARIES
        ]
        if kind == "greedy":
            sure = found["greedy_with_confidence_ms_per_round_151k"]
            lines.append(f"  {kind:8} 151k: {sure:.3f} ms per round with confidence")
        lines.append(
            f"  {kind:8} SmolLM2 (49k), copied drafts: {found[f'{kind}_ms_per_round_smollm2']:.3f} ms, "
            f"{100 * found[f'{kind}_share_of_round']:.1f} % of the round"
        )
    budgets = ", ".join(f"{kind} {ms} ms" for kind, ms in BUDGET_MS.items())
    return "\n".join([*lines, f"budget at 151k: {budgets}: {'met' if met(found) else 'missed'}"])


def met(found: dict[str, Any]) -> bool:
    return all(found[f"{kind}_ms_per_round_151k"] <= ms for kind, ms in BUDGET_MS.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=600, help="tokens decoded per setting")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = report(options.tokens)
    print(json.dumps(found, indent=2) if options.json else human(found))
    return int(not met(found))


if __name__ == "__main__":
    sys.exit(main())
