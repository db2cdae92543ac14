"""What a hopeless draft costs: SmolLM2 with a drafter that is always wrong, against plain decoding.

Interleaved pairs; the budget is 0.97× over the tokens after the first 64. The wrong drafter takes real time
for each token (a quarter of a one-row decode, in a busy wait), so that drafting has to be stopped, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.catalog import demo_target_path
from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.backend import Context, ContextSettings, load_model
from localspec.engine.backend.samplers import Candidates, native_samplers
from localspec.engine.control import Control, Options
from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens
from localspec.engine.events import Notice, Round
from localspec.engine.policy import FixedPolicy, Policy
from localspec.engine.sampling import Sampler
from localspec.engine.settings import SamplingSettings
from localspec.engine.speculative import Loop
from localspec.session.loading import calibrate, physical_cores

PROMPT = "<|im_start|>user\nWrite a long story about a lighthouse keeper.<|im_end|>\n<|im_start|>assistant\n"
WARM = 64
BUDGET = 0.97


class WrongDrafter:
    """Proposes an id that the model never says, after the time a small draft model would take."""

    name = "draft"
    samples = False
    free = False

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def begin(self, history: History) -> None: ...
    def observe(self, tokens: Tokens, start: int) -> None: ...
    def commit(self, history: History, accepted: int) -> None: ...
    def close(self) -> None: ...

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [])
        while len(draft) < k and more(len(draft), 0.6):
            until = time.perf_counter() + self._token_s
            while time.perf_counter() < until:
                pass
            draft.tokens.append(5)
            draft.confidences.append(0.6)
            draft.draft_s += self._token_s
        return draft


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=WARM + 600)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = demo_target_path()
    assert path is not None, "run scripts/setup first"
    model = load_model(path)
    vocabulary = model.vocabulary
    context = Context(model, ContextSettings(n_ctx=1024, n_outputs_max=17, threads=options.threads))
    cells = context.sequence()
    prompt = np.array(vocabulary.tokenize(PROMPT, special=True, add_special=False), np.int32)
    greedy = SamplingSettings(temperature=0.0)

    def rate(policy: Policy, drafters: list[WrongDrafter]) -> tuple[float, list[str]]:
        """Tokens per second after the first `WARM` tokens, and the notices."""
        cells.truncate(0)
        native = native_samplers(greedy, vocabulary, 1024, 0, Candidates(vocabulary.n_vocab))
        loop = Loop(cells, drafters, Sampler(greedy, native), policy,
                    Options(options.tokens, 16, 0, frozenset()), Control())  # fmt: skip
        tokens, seconds, said = 0, 0.0, []
        for event in loop.run(prompt):
            if isinstance(event, Round):
                tokens += event.committed
                seconds += (event.draft_s + event.verify_s + event.other_s) if tokens > WARM else 0.0
            elif isinstance(event, Notice):
                said.append(f"{event.kind}: {event.reason}")
        return (tokens - WARM) / seconds, said

    adaptive = AdaptivePolicy()
    calibrate(cells, adaptive.verify, 16)
    token_s = 0.25 * adaptive.verify.seconds(1, 0)
    rate(FixedPolicy(0), [])
    ratios: list[float] = []
    notices: list[str] = []
    for _ in range(options.pairs):
        plain, _said = rate(FixedPolicy(0), [])
        policy = AdaptivePolicy(adaptive.verify)
        losing, notices = rate(policy, [WrongDrafter(token_s)])
        ratios.append(losing / plain)
    median = statistics.median(ratios)
    low, high = min(ratios), max(ratios)
    result = {
        "ratio_median": median,
        "ratio_range": [low, high],
        "pairs": options.pairs,
        "tokens": options.tokens,
        "threads": options.threads,
        "budget": BUDGET,
        "notices": notices,
    }
    if options.json:
        print(json.dumps(result))
    else:
        spread = f"{median:.3f}× ({low:.3f}–{high:.3f})"
        print(f"hopeless draft / plain after {WARM} tokens: {spread}, budget {BUDGET}×")
        print("\n".join(notices))
    context.close()
    model.close()
    return 0 if median >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
