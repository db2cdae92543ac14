"""What the pairs are measured against: memory, context length and KV type, and the next choice of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from localspec.budget import PRESETS, parse_budget
from localspec.engine.settings import KvType, LoadSettings
from localspec.errors import UsageError
from localspec.planning import DEFAULT_CTX

CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0", "q4_0")
MACHINE = None
"""The budget that is no simulation: what this machine's devices have free."""
BUDGETS: tuple[str | None, ...] = (
    *sorted(PRESETS, key=lambda name: (name != next(iter(PRESETS)), -PRESETS[name])),
    MACHINE,
)
"""The product's own card first, then smaller ones, then this machine."""
MAX_CTX = 1 << 24
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Question:
    """One setting of the three knobs, and everything else a load needs."""

    budget: str | None
    """A preset or a size, as `--budget` takes it; None = the memory of this machine."""
    load: LoadSettings

    @property
    def n_ctx(self) -> int:
        """The context asked for; what the engine would take at most when none was."""
        return self.load.n_ctx or DEFAULT_CTX

    def next_context(self) -> Question:
        """The next longer usual context, after the longest the shortest."""
        longer = [length for length in CONTEXTS if length > self.n_ctx]
        return self._with(n_ctx=longer[0] if longer else CONTEXTS[0])

    def next_kv(self) -> Question:
        """The next type for K and V of the target."""
        kv = after(KV_TYPES, self.load.kv[0])
        return self._with(kv=(kv, kv))

    def next_budget(self) -> Question:
        return replace(self, budget=after(BUDGETS, self.budget))

    def with_context(self, text: str) -> Question:
        """The context that a person typed: `32768`, `32k`.

        Raises:
            UsageError: no positive number of tokens.
        """
        word = text.strip().lower().replace("_", "").replace(" ", "")
        digits, factor = (word[:-1], 1024) if word.endswith("k") else (word, 1)
        if not digits.isdecimal() or not 0 < int(digits) * factor <= MAX_CTX:
            raise UsageError(f"`{text}` is no context length", hint="write tokens like `32768` or `32k`")
        return self._with(n_ctx=int(digits) * factor)

    def with_budget(self, text: str) -> Question:
        """The memory that a person typed; empty = this machine.

        Raises:
            UsageError: neither a size nor a preset.
        """
        word = text.strip()
        return replace(self, budget=parse_budget(word).name if word else MACHINE)

    @property
    def text(self) -> str:
        """Context and KV type in words."""
        return f"ctx {self.n_ctx} · KV {'/'.join(dict.fromkeys(self.load.kv))}"

    @property
    def memory(self) -> str:
        """What the pairs are compared with; a simulation says so."""
        return f"SIM {self.budget}" if self.budget else "this machine"

    def _with(self, **changes: Any) -> Question:
        return replace(self, load=replace(self.load, **changes))


def after(choices: Sequence[_T], current: _T) -> _T:
    """The choice that follows `current`; the first when it is the last or none of them."""
    return choices[(choices.index(current) + 1) % len(choices)] if current in choices else choices[0]
