"""The proof that `doctor` offers passes on a sound build and fails on a broken one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.engine.backend import Context
from localspec.engine.backend import Sequence as Cells
from localspec.engine.events import Token
from localspec.engine.settings import LoadSettings
from localspec.errors import EngineError
from localspec.interfaces import PairFiles, SessionLike
from localspec.selftest.proof import Finding, _difference, prove
from localspec.session import open_session
from tests.engine.harness import patched
from tests.kit.ggufs import syn


def run(builds: int = 1) -> list[Finding]:
    return list(prove(open_session, syn("syn").parent, LoadSettings(), builds=builds))


def test_a_sound_build_passes_every_time() -> None:
    """Known fault 110: some fresh builds of one pair accept nothing, so construction is repeated."""
    findings = run(builds=3)
    assert [(f.check, f.build) for f in findings] == [
        (check, build) for build in range(3) for check in ("self", "alien", "rollback")
    ]
    assert all(f.passed for f in findings), findings
    assert all("text as without speculation" in f.detail for f in findings)


def failed(findings: Sequence[Finding]) -> set[str]:
    return {f.check for f in findings if not f.passed}


def test_a_cache_that_keeps_rejected_rows_is_noticed() -> None:
    def keeps(self: Cells, n: int) -> int:
        self.n_past = n
        return 0

    with patched(Cells, "truncate", keeps):
        assert failed(run()) >= {"alien", "rollback"}


def test_a_draft_that_reads_wrong_positions_is_noticed() -> None:
    run_rows = Context.run

    def shifted(self: Context, tokens, start, seq_id, outputs):  # type: ignore[no-untyped-def]
        if self.settings.n_outputs_max > 1:
            return run_rows(self, tokens, start, seq_id, outputs)
        return run_rows(self, [(token + 1) % self.n_vocab for token in tokens], start, seq_id, outputs)

    with patched(Context, "run", shifted):
        assert failed(run()) == {"self"}


def test_a_pair_that_does_not_open_is_a_finding(tmp_path: Path) -> None:
    def refuse(files: PairFiles, load: LoadSettings) -> SessionLike:
        raise EngineError(f"no memory for `{files.name}`")

    findings = list(prove(refuse, tmp_path, LoadSettings()))
    assert failed(findings) == {"self", "alien", "rollback"}
    assert findings[0].detail == "no memory for `selftest-self`"
    assert (tmp_path / "syn.gguf").exists(), "the models are written where none lie"


@pytest.mark.parametrize(
    ("gap", "fault"), [(0.01, None), (0.5, "token 2 is not the target's choice by 0.50")]
)
def test_only_a_tie_may_part_two_texts(gap: float, fault: str | None) -> None:
    def said(*ids: int) -> list[Token]:
        return [Token(id, "", "content", False, "off", 0, top=((id, -0.1), (99, -0.1 - gap))) for id in ids]

    assert _difference(said(1, 2, 3), said(1, 9, 9)) == fault
    assert _difference(said(1, 2, 3), said(1, 2)) == "2 tokens where plain decoding gives 3"
