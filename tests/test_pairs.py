"""Names and files become the files of a session; everything else is one sentence with the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.catalog import demo_target_path
from localspec.errors import ModelFileError, PairingError, UsageError
from localspec.interfaces import Companion
from localspec.pairs import companion, resolve
from tests.kit.ggufs import syn


def test_the_demo_pair_is_known_everywhere() -> None:
    files = resolve("demo")
    assert files.name == "demo" and files.target == demo_target_path()
    assert resolve(None, default="demo") == files


def test_files_are_classified_by_their_contents(tmp_path: Path) -> None:
    """Never by name: a head called draft.gguf is a head."""
    for name, kind in (("syn-near", "draft"), ("eagle3", "eagle3"), ("medusa", "medusa"),
                       ("dflash2", "dflash"), ("syn-mtp-only", "mtp")):  # fmt: skip
        renamed = tmp_path / "draft.gguf"
        renamed.write_bytes(syn(name).read_bytes())
        assert companion(renamed).kind == kind
    files = resolve(None, syn("syn"), syn("eagle3"))
    assert files.companions == (Companion("eagle3", syn("eagle3")),)


def test_mtp_layers_inside_the_target_are_found() -> None:
    assert resolve(None, syn("syn-mtp")).companions == (Companion("mtp", syn("syn-mtp")),)
    assert resolve(None, syn("syn")).companions == ()


def test_a_draft_of_its_own_replaces_the_pairs() -> None:
    files = resolve("demo", None, syn("syn-near"))
    assert files.companions == (Companion("draft", syn("syn-near")),)


def test_what_cannot_be_resolved_says_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown pair `demoo`") as caught:
        resolve("demoo")
    assert "demo" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no pair was given") as caught:
        resolve(None)
    assert "localspec chat demo" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="both a pair"):
        resolve("demo", syn("syn"))
    with pytest.raises(ModelFileError, match="not on this disk") as missing:
        resolve("llama-3.1-8b-1b")
    assert missing.value.hint == "run `localspec pull llama-3.1-8b-1b`"
    with pytest.raises(ModelFileError):
        resolve(None, tmp_path / "none.gguf")
    with pytest.raises(PairingError, match="another purpose"):
        other = tmp_path / "other.gguf"
        import gguf

        writer = gguf.GGUFWriter(other, "bert")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        companion(other)
