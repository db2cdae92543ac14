"""Companions that do not fit are refused in one sentence, and the pair goes on without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.backend import features
from localspec.engine.backend.library import _STAGING, staging
from localspec.engine.events import Done, Notice, Token
from localspec.engine.settings import LoadSettings, Method, Request, SamplingSettings, SpeculationSettings
from localspec.errors import EngineError, UsageError
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.selftest import VARIANTS
from localspec.selftest.drafts import Draft as DraftFile
from localspec.selftest.medusa import write_medusa
from localspec.selftest.weights import Draw, TinyFile
from localspec.session import open_session
from localspec.session.session import Session
from tests.engine.learned import EXACT
from tests.kit.ggufs import syn

LOAD = replace(EXACT, k_max=4)
HEADS = {"eagle3": ("syn", "eagle3"), "mtp": ("syn-chain", "syn-chain"), "dflash": ("syn", "dflash2")}
SIDECARS = {
    "eagle3": ("syn", "eagle3"), "mtp": ("syn-hyb", "syn-mtp-only"), "dflash": ("syn", "dspark"),
    "medusa": ("syn", "medusa-lm"), "draft": ("syn", "syn-near"),
}  # fmt: skip


def session(target: str, kind: DraftKind, companion: Path, load: LoadSettings = LOAD) -> Session:
    return open_session(PairFiles("pair", syn(target), (Companion(kind, companion),)), load)


def answer(opened: Session, method: Method = "auto") -> list[object]:
    request = Request(
        prompt="abc def abc def abc",
        sampling=SamplingSettings(temperature=0.0),
        speculation=SpeculationSettings(method=method, k=3),
        max_tokens=12,
        ignore_eog=True,
    )
    return list(opened.reply(request))


def assert_refused(opened: Session, kind: DraftKind) -> str:
    """The pair answers without the companion and says why; asking for it by name fails with the reason."""
    reason = opened.info.off_reason
    assert reason and "\n" not in reason
    assert kind not in opened.info.methods
    events = answer(opened)
    assert any(isinstance(e, Notice) and e.kind == "off" and reason in e.reason for e in events)
    assert len([e for e in events if isinstance(e, Token)]) == 12
    assert isinstance(events[-1], Done) and events[-1].reason == "length"
    with pytest.raises(UsageError, match="not available"):
        answer(opened, kind)
    return reason


@pytest.mark.parametrize("symbol", [name for name in _STAGING if "tok_embd" not in name])
@pytest.mark.parametrize("kind", HEADS)
def test_a_build_without_a_symbol_refuses_what_needs_it(
    kind: DraftKind, symbol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staging API comes and goes with builds; what does not need it keeps working."""
    asked = []

    def without(name: str) -> object:
        asked.append(name)
        if name == symbol:
            raise EngineError(
                f"this llama.cpp build does not export `llama_{name}`, which this drafter needs"
            )
        return staging(name)

    monkeypatch.setattr(features, "staging", without)
    target, companion = HEADS[kind]
    opened = session(target, kind, syn(companion))
    if symbol in asked:
        assert f"does not export `llama_{symbol}`" in assert_refused(opened, kind)
    else:
        assert kind in opened.info.methods
        assert isinstance(answer(opened, kind)[-1], Done)
    opened.close()


def test_a_symbol_that_no_build_has_is_named() -> None:
    with pytest.raises(EngineError, match="does not export `llama_nothing`"):
        _STAGING["nothing"] = ("_Znothing", "?nothing", None, ())
        try:
            staging("nothing")
        finally:
            del _STAGING["nothing"]


@pytest.mark.parametrize("target", ["syn", "syn-8", "syn-hyb-few"])
@pytest.mark.parametrize("kind", ["draft", "eagle3", "mtp", "dflash", "medusa"])
def test_no_file_in_any_role_ends_the_process(kind: DraftKind, target: str) -> None:
    """Every tiny model in the role of every companion: it drafts or is refused, and the pair answers."""
    for name, variant in VARIANTS.items():
        if name == target and kind == "mtp":
            continue  # inside the target: its own test
        opened = session(target, kind, syn(name))
        if kind in opened.info.methods:
            right = variant.kind == kind or (variant.kind == "target" and kind == "draft")
            assert right, f"{name} drafts as {kind}"
            assert isinstance(answer(opened, kind)[-1], Done)
        else:
            assert_refused(opened, kind)
        opened.close()


@pytest.mark.parametrize(
    ("target", "kind", "companion", "word"),
    [
        ("syn", "eagle3", "eagle3-misfit", "width 96"),
        ("syn-8", "eagle3", "eagle3", "vocabulary"),
        ("syn-v", "dflash", "dflash", "tokenizer differs"),
        ("syn-v", "medusa", "medusa", "another tokenizer"),
        ("syn", "mtp", "syn-mtp-only", "`qwen35`"),
        ("syn", "mtp", "syn", "no MTP layers"),
        ("syn-hyb-few", "mtp", "syn-mtp-b", "no `mtp` file but `model with nextn`"),
        ("syn", "eagle3", "dflash", "no `eagle3` file but `dflash`"),
        ("syn", "draft", "eagle3", "no `draft` file but `eagle3`"),
        ("syn-hyb-few", "medusa", "medusa", "`llama` model"),
    ],
)
def test_the_reason_says_what_does_not_fit(target: str, kind: DraftKind, companion: str, word: str) -> None:
    opened = session(target, kind, syn(companion))
    assert word in assert_refused(opened, kind)
    opened.close()


@pytest.mark.parametrize("kind", SIDECARS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.999])
def test_a_truncated_companion_is_refused(kind: DraftKind, share: float, tmp_path: Path) -> None:
    """Known fault 18: no drafter without its tensors, and no null context."""
    target, companion = SIDECARS[kind]
    whole = syn(companion).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    opened = session(target, kind, cut)
    assert "cut.gguf" in assert_refused(opened, kind)
    opened.close()


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [("head.1.0.weight", (64, 32)), ("head.1.0.bias", (32,)), ("head.1.lm_head.weight", (100, 64))],
)
def test_medusa_tensors_of_another_shape_are_refused(
    tensor: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = TinyFile.add

    def misshapen(self: TinyFile, name: str, values: np.ndarray, *, quantize: bool = False) -> None:
        add(self, name, np.zeros(shape, np.float32) if name == tensor else values, quantize=quantize)

    monkeypatch.setattr(TinyFile, "add", misshapen)
    path = tmp_path / "heads.gguf"
    write_medusa(path, DraftFile("heads", "syn", Draw(seed=3)), own_lm_heads=2)
    opened = session("syn", "medusa", path)
    assert f"`{tensor}` of shape" in assert_refused(opened, "medusa")
    opened.close()


def test_the_second_companion_of_a_kind_is_refused() -> None:
    files = PairFiles(
        "pair", syn("syn"), (Companion("dflash", syn("dflash")), Companion("dflash", syn("dspark")))
    )
    opened = open_session(files, LOAD)
    assert "dflash" in opened.info.methods
    assert opened.info.off_reason == "`dspark.gguf` is the second `dflash` of the pair"
    opened.close()


def test_a_target_that_hides_its_layers_serves_one_learned_drafter() -> None:
    files = PairFiles(
        "pair", syn("syn-qwen2"), (Companion("eagle3", syn("eagle3")), Companion("dflash", syn("dflash")))
    )
    opened = open_session(files, LOAD)
    assert "eagle3" in opened.info.methods and "dflash" not in opened.info.methods
    assert "only one learned drafter" in (opened.info.off_reason or "")
    assert isinstance(answer(opened, "eagle3")[-1], Done)
    opened.close()


def test_another_checkpoint_of_the_same_shape_is_remarked() -> None:
    """Known fault 85: widths alone do not tell a fine-tune from its base."""
    said: list[object] = []
    files = PairFiles("pair", syn("syn-b"), (Companion("eagle3", syn("eagle3")),))
    opened = open_session(files, LOAD, said.append)
    assert any(isinstance(e, Notice) and "another checkpoint" in e.reason for e in said)
    opened.close()


def test_a_quantised_draft_cache_is_remarked_and_costs_acceptance() -> None:
    """Known fault 73: the draft suffers from a coarse KV cache, the target's own text does not change."""
    said: list[object] = []
    accepted, texts = [], []
    for draft_kv in (("f16", "f16"), ("q4_0", "f16")):
        files = PairFiles("pair", syn("syn"), (Companion("draft", syn("syn")),))
        opened = open_session(files, replace(LOAD, draft_kv=draft_kv), said.append)
        request = Request(
            prompt="not the return of self in",
            sampling=SamplingSettings(temperature=0.0),
            speculation=SpeculationSettings(method="draft", k=4),
            max_tokens=150,
            ignore_eog=True,
        )
        events = list(opened.reply(request))
        opened.close()
        texts.append([e.id for e in events if isinstance(e, Token)])
        last = events[-1]
        assert isinstance(last, Done)
        accepted.append(last.summary.accept_per_tested)
        notices = [e for e in said if isinstance(e, Notice)]
        assert len(notices) == (draft_kv[0] == "q4_0")
    assert texts[0] == texts[1]
    assert accepted[0] == 1.0 and (accepted[1] or 1.0) < 0.97
