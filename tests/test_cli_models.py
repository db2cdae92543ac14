"""Browsing, planning, pulling and managing pairs from the command line, against a hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.catalog import read_pins
from localspec.download import Library
from tests.kit import downloads, userpairs
from tests.kit.fakehub import FakeHub, Fault
from tests.kit.ggufs import syn
from tests.kit.userpairs import ROWS, user_rows

fake = downloads.fake
Run = tuple[int, str, str]

models, pair, run = userpairs.models, userpairs.pair, userpairs.run


class TestPickModels:
    FIELDS = ("name", "target", "draft", "method", "fit", "bytes", "total_bytes", "largest_ctx", "gpu_layers",
              "license", "state", "evidence")  # fmt: skip

    def test_json_is_the_documented_shape(self, run: Any) -> None:
        code, out, err = run(
            "pick-models", "--list", "--json", "--budget", "24GiB", "--ctx", "8192", "--kv", "q8_0"
        )
        pairs = json.loads(out)["pairs"]
        assert code == 0 and len(pairs) >= 30
        for row in pairs:
            assert set(self.FIELDS) <= set(row)
            assert row["fit"] in ("fits", "tight", "partial", "too big", "unknown")
            assert all(set(item) == {"term", "device", "bytes"} for item in row["bytes"])
        assert {tuple(row["kv"]) for row in pairs} == {("q8_0", "q8_0")}
        assert "24GiB SIM" in err and "KV q8_0" in err

    def test_without_a_terminal_it_is_the_list(self, run: Any) -> None:
        code, out, err = run("pick-models", "--budget", "24GB-card")
        header, rule, first, *_ = out.splitlines()
        assert code == 0
        assert header.split()[:3] == ["pair", "fit", "memory"] and set(rule) <= {"─", " "}
        assert first.startswith("demo ") and "● fits" in first
        assert "`localspec pull NAME` fetches one" in err

    def test_this_machine_is_named(self, run: Any) -> None:
        _, _, err = run("pick-models", "--list")
        assert err.startswith("compared with ")

    def test_devices_that_cannot_be_read_are_said(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import localspec.planning as planning
        from localspec.planning import Machine

        monkeypatch.setattr(planning, "host_machine", lambda: None)
        monkeypatch.setattr(planning, "read_machine", lambda **_: Machine(reason="llama.cpp hung"))
        code, out, err = run("pick-models", "--list")
        assert code == 0 and "fits" not in out and "? unknown" in out
        assert err.startswith("warning: llama.cpp hung; `--budget 24GB-card`")

    def test_on_a_terminal_it_opens_the_screen(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import localspec.tui

        seen: list[Any] = []
        monkeypatch.setattr(localspec.tui, "why_no_screen", lambda: None)
        monkeypatch.setattr(localspec.tui, "run_picker", lambda **how: seen.append(how) or 0)
        assert run("pick-models", "--budget", "8GB-card", "--ctx", "4096")[0] == 0
        [how] = seen
        assert how["budget"] == "8GB-card" and how["config"].load["n_ctx"] == 4096 and how["catalog"].pairs

    def test_a_bad_budget(self, run: Any) -> None:
        code, _, err = run("pick-models", "--list", "--budget", "much")
        assert code == 2 and "`much` is no memory size" in err and "24GB-card" in err


class TestPlan:
    def test_files(self, run: Any) -> None:
        code, out, _ = run(
            "plan", "--target", str(syn("syn")), "--draft", str(syn("syn-w")), "--ctx", "1024",
            "--budget", "8GB-card", "--json",
        )  # fmt: skip
        plan = json.loads(out)
        assert code == 0
        assert (plan["fit"], plan["source"], plan["simulated"]) == ("fits", "header", True)
        assert plan["verdict"]["status"] == "compatible"
        assert {item["device"] for item in plan["bytes"]} == {"8GB-card", "CPU"}

    def test_for_people(self, run: Any) -> None:
        code, out, err = run("plan", "llama-3.1-8b-1b", "--offline", "--budget", "24GB-card", "--ctx", "8192")
        assert code == 0
        assert "● fits" in out and "SIM" in out and "target KV" in out and "the catalogue" in out
        assert "24GB-card SIM" in err

    def test_explain_is_the_arithmetic(self, run: Any) -> None:
        code, out, _ = run("plan", "demo", "--explain", "--budget", "8GB-card")
        assert code == 0
        assert "usable 6.50 GiB = 8.00 GiB free - 1.50 GiB" in out

    def test_headers_come_from_the_hub_before_any_download(
        self, run: Any, pair: FakeHub, models: Path
    ) -> None:
        code, out, _ = run("plan", "tiny-pair", "--budget", "8GB-card", "--json")
        plan = json.loads(out)
        assert code == 0
        assert (plan["source"], plan["estimated"], plan["state"]) == ("header", False, "not downloaded")
        assert plan["verdict"]["status"] == "compatible"
        _, out, _ = run("pick-models", "--list", "--json", "--budget", "8GB-card")
        row = next(row for row in json.loads(out)["pairs"] if row["name"] == "tiny-pair")
        assert (row["fit"], row["source"]) == ("fits", "header"), "the list knows what was read once"

    def test_no_pair(self, run: Any) -> None:
        code, _, err = run("plan")
        assert code == 2 and "`localspec models ls`" in err


class TestPull:
    def test_target_and_draft_are_one_thing(self, run: Any, pair: FakeHub, models: Path) -> None:
        code, out, err = run("pull", "tiny-pair")
        target, draft = (Path(line) for line in out.splitlines())
        assert code == 0
        assert (target, draft) == (models / "o/target/target.gguf", models / "o/draft/draft-Q8_0.gguf")
        assert (
            target.read_bytes() == syn("syn").read_bytes() and draft.read_bytes() == syn("syn-w").read_bytes()
        )
        assert err.count("SHA-256 right") == 2

    def test_a_second_pull_asks_nobody(self, run: Any, pair: FakeHub) -> None:
        assert run("pull", "tiny-pair")[0] == 0
        pair.seen.clear()
        code, out, err = run("pull", "tiny-pair", "--json")
        assert code == 0 and not pair.seen and "already here" in err
        assert len(json.loads(out)["pairs"][0]["files"]) == 2

    def test_what_was_fetched_is_pinned_and_used(self, run: Any, pair: FakeHub) -> None:
        assert run("pull", "tiny-pair")[0] == 0
        pins = read_pins()
        assert pins["o/target", "target.gguf"].sha256 == pair.sha256(syn("syn").read_bytes())
        code, out, _ = run("models", "ls", "--installed", "--json")
        assert code == 0
        assert {row["name"] for row in json.loads(out)["pairs"]} == {"demo", "tiny-pair"}

    def test_a_renamed_file_is_found_by_its_label(
        self, run: Any, home: Path, pair: FakeHub, models: Path
    ) -> None:
        pair.push("o/draft", {"Draft-model.Q8_0.gguf": syn("syn-w").read_bytes(), "other.Q4_0.gguf": b"GGUF"})
        user_rows(home, ROWS.format(target="target.gguf").replace("draft-Q8_0.gguf", "draft-model-Q8_0.gguf"))
        code, out, err = run("pull", "tiny-pair")
        assert code == 0 and "is called `Draft-model.Q8_0.gguf`" in err
        assert (models / "o/draft/Draft-model.Q8_0.gguf").is_file()
        _, out, _ = run("models", "ls", "--installed", "--json")
        assert "tiny-pair" in {row["name"] for row in json.loads(out)["pairs"]}

    def test_a_draft_of_another_vocabulary_is_refused_before_the_download(
        self, run: Any, pair: FakeHub, models: Path
    ) -> None:
        pair.push("o/draft", {"draft-Q8_0.gguf": syn("syn-8").read_bytes()})
        code, _, err = run("pull", "tiny-pair")
        assert code == 1 and err.startswith("error: ")
        assert not list(models.rglob("*.gguf"))

    def test_what_does_not_fit_is_refused_with_4_and_force_fetches_it(
        self, run: Any, pair: FakeHub, models: Path
    ) -> None:
        code, _, err = run("pull", "tiny-pair", "--budget", "1600MiB", "--ctx", "500000")
        assert code == 4 and "hint: " in err and "--force" in err
        assert not list(models.rglob("*.gguf"))
        assert run("pull", "tiny-pair", "--budget", "1600MiB", "--ctx", "500000", "--force")[0] == 0

    def test_gated(self, run: Any, home: Path, fake: FakeHub) -> None:
        user_rows(home)
        fake.push("o/target", {"target.gguf": syn("syn").read_bytes()}, gated="manual")
        fake.push("o/draft", {"draft-Q8_0.gguf": syn("syn-w").read_bytes()})
        code, _, err = run("pull", "tiny-pair")
        assert code == 5 and "o/target" in err

    def test_no_network_and_nothing_here(
        self, run: Any, pair: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        code, _, err = run("pull", "tiny-pair")
        assert code == 3 and "`localspec models ls`" in err
        code, _, err = run("chat", "tiny-pair", "-p", "hi")
        assert code == 1 and "hint: run `localspec pull tiny-pair`" in err

    def test_no_network_and_everything_here(
        self, run: Any, pair: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run("pull", "tiny-pair")[0] == 0
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        pair.seen.clear()
        code, out, _ = run("plan", "tiny-pair", "--json", "--budget", "8GB-card")
        plan = json.loads(out)
        assert code == 0 and not pair.seen
        assert (plan["state"], plan["source"], plan["notes"]) == ("installed", "header", [])

    def test_ctrl_c_keeps_the_part_and_the_next_pull_goes_on(
        self, run: Any, pair: FakeHub, monkeypatch: pytest.MonkeyPatch, models: Path
    ) -> None:
        import localspec.download
        from localspec.download import Progress, pull

        class Interrupted:
            """A pull whose user presses Ctrl+C at the first progress."""

            def __init__(self, *given: Any, **how: Any) -> None:
                self.inner = pull(*given, **how)

            def __iter__(self) -> Any:
                for event in self.inner:
                    yield event
                    if isinstance(event, Progress):
                        raise KeyboardInterrupt

            def close(self) -> None:
                self.inner.close()

        with monkeypatch.context() as patch:
            patch.setattr(localspec.download, "pull", Interrupted)
            code, _, err = run("pull", "tiny-pair")
        assert code == 130 and "`localspec pull tiny-pair` goes on" in err
        _, _, err = run("models", "ls")
        assert "unfinished: tiny-pair" in err
        assert run("pull", "tiny-pair")[0] == 0

    def test_a_broken_transfer_is_tried_again(
        self, run: Any, pair: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run("plan", "tiny-pair", "--budget", "8GB-card")[0] == 0  # the headers are kept
        pair.inject(Fault("cut", at=2000))
        code, _, err = run("pull", "tiny-pair")
        assert code == 0 and "next try in" in err

    def test_unknown_pair(self, run: Any) -> None:
        code, _, err = run("pull", "demmo")
        assert code == 2 and "did you mean `demo`?" in err

    def test_the_embedded_pair_needs_nothing(self, run: Any, fake: FakeHub) -> None:
        code, _, err = run("pull", "demo")
        assert code == 0 and "nothing to download" in err and not fake.seen


class TestManage:
    def test_verify_finds_a_flipped_byte(self, run: Any, pair: FakeHub, models: Path) -> None:
        run("pull", "tiny-pair")
        assert run("models", "verify")[0] == 0
        file = models / "o/target/target.gguf"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        code, out, _ = run("models", "verify", "tiny-pair", "--json")
        results = {Path(row["file"]).name: row["error"] for row in json.loads(out)["files"]}
        assert code == 1
        assert results["draft-Q8_0.gguf"] is None and "SHA-256" in results["target.gguf"]

    def test_scan_lists_other_tools_files_and_changes_nothing(
        self, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: Path
    ) -> None:
        folder = tmp_path / "llama.cpp"
        folder.mkdir()
        (folder / "some.gguf").write_bytes(syn("syn").read_bytes())
        (folder / "broken.gguf").write_bytes(b"<html>")
        monkeypatch.setenv("LLAMA_CACHE", str(folder))
        code, out, _ = run("models", "scan", "--json")
        found = {Path(row["path"]).name: row for row in json.loads(out)["files"]}
        assert code == 0 and set(found) == {"some.gguf", "broken.gguf"}
        assert (found["some.gguf"]["where"], found["some.gguf"]["kind"]) == ("llama.cpp", "model")
        assert "HTML" in found["broken.gguf"]["error"]
        assert not models.exists()

    def test_a_pull_uses_what_another_tool_has(
        self, run: Any, pair: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: Path
    ) -> None:
        folder = tmp_path / "llama.cpp"
        folder.mkdir()
        (folder / "target.gguf").write_bytes(syn("syn").read_bytes())
        monkeypatch.setenv("LLAMA_CACHE", str(folder))
        code, out, _ = run("pull", "tiny-pair")
        assert code == 0
        assert out.splitlines()[0] == str(folder / "target.gguf")
        assert not (models / "o/target/target.gguf").exists()
        _, out, _ = run("models", "ls", "--installed", "--json")
        assert "tiny-pair" in {row["name"] for row in json.loads(out)["pairs"]}

    def test_a_new_copy_replaces_nothing_that_is_recorded(
        self, run: Any, pair: FakeHub, models: Path
    ) -> None:
        run("pull", "tiny-pair")
        assert len(Library(models).records()) == 2


class TestAdd:
    def test_files_on_this_disk(self, run: Any, home: Path) -> None:
        code, out, _ = run("models", "add", "mine", "--target", str(syn("syn")), "--draft", str(syn("syn-w")))
        assert code == 0 and "added `mine` (compatible)" in out
        _, out, _ = run("plan", "mine", "--json", "--budget", "8GB-card")
        assert (json.loads(out)["state"], json.loads(out)["fit"]) == ("installed", "fits")

    def test_from_the_hub_by_label(self, run: Any, pair: FakeHub) -> None:
        code, _, err = run("models", "add", "mine", "--target", "tiny", "--draft", "o/draft:Q8_0")
        assert code == 0 and "`localspec pull mine` downloads it" in err
        code, out, _ = run("pull", "mine")
        assert code == 0 and len(out.splitlines()) == 2

    def test_a_draft_that_does_not_belong_is_not_saved(self, run: Any, home: Path) -> None:
        code, _, err = run("models", "add", "mine", "--target", str(syn("syn")), "--draft", str(syn("syn-8")))
        assert code == 1 and err.startswith("error: ")
        assert not (home / "config" / "models.toml").exists()

    @pytest.mark.parametrize(("target", "kind"), [("syn-mtp", "mtp-inside"), ("syn", "ngram")])
    def test_without_a_draft_the_target_helps_itself(self, run: Any, target: str, kind: str) -> None:
        code, out, _ = run("models", "add", "mine", "--target", str(syn(target)), "--json")
        assert code == 0 and json.loads(out)["kind"] == kind

    def test_a_taken_name(self, run: Any) -> None:
        code, _, err = run("models", "add", "demo", "--target", str(syn("syn")))
        assert code == 2 and "there is a pair `demo` already" in err

    def test_a_target_that_is_none(self, run: Any) -> None:
        assert run("models", "add", "mine", "--target", str(syn("medusa")))[0] == 1
        code, _, err = run("models", "add", "mine", "--target", "no-such-model")
        assert code == 2 and "unknown model `no-such-model`" in err


class TestSuggest:
    def test_local_drafts_come_first_with_a_reason_each(
        self, run: Any, pair: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "llama.cpp"
        folder.mkdir()
        for name in ("syn-q8_0", "syn-8", "syn-w"):
            (folder / f"{name}.gguf").write_bytes(syn(name).read_bytes())
        monkeypatch.setenv("LLAMA_CACHE", str(folder))
        code, out, _ = run("models", "suggest", "tiny-pair", "--json")
        rows = json.loads(out)["candidates"]
        assert code == 0
        assert [(row["name"], row["local"]) for row in rows[:2]] == [
            ("syn-q8_0.gguf", True),
            ("tiny-draft", False),
        ]
        assert (rows[-1]["name"], rows[-1]["status"]) == ("syn-8.gguf", "refused")
        assert all(row["reason"] for row in rows)
        assert len(rows) == 3, "a model as large as the target cannot draft faster"

    def test_a_verdict_follows_the_content_not_the_name(
        self, run: Any, pair: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Known fault 86: cached verdicts, and candidates left out without a reason."""
        folder = tmp_path / "llama.cpp"
        folder.mkdir()
        monkeypatch.setenv("LLAMA_CACHE", str(folder))
        file = folder / "draft.gguf"

        def answer(name: str) -> tuple[str, str]:
            rows = json.loads(run("models", "suggest", "tiny-pair", "--json")[1])["candidates"]
            return next((row["status"], row["reason"]) for row in rows if row["name"] == name)

        file.write_bytes(syn("syn-q8_0").read_bytes())
        assert answer("draft.gguf")[0] == "compatible"
        file.rename(folder / "renamed.gguf")
        assert answer("renamed.gguf")[0] == "compatible"
        (folder / "renamed.gguf").write_bytes(syn("syn-8").read_bytes())
        status, reason = answer("renamed.gguf")
        assert status == "refused" and reason

    def test_offline_what_was_not_compared_says_so(self, run: Any, pair: FakeHub, home: Path) -> None:
        user_rows(
            home,
            ROWS.format(target="target.gguf").replace('repo = "o/target"\nfile', f'path = "{syn("syn")}"\n#'),
        )
        code, out, _ = run("models", "suggest", "tiny-pair", "--offline")
        assert code == 0 and "not compared" in out and not pair.seen


class TestConfig:
    def test_show_says_where_a_value_comes_from(
        self, run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "config").mkdir()
        (home / "config" / "config.toml").write_text("top_k = 7\n")
        monkeypatch.setenv("LOCALSPEC_CTX", "512")
        code, out, _ = run("config", "show", "--changed", "--json")
        rows = {row["key"]: row for row in json.loads(out)["settings"]}
        assert code == 0 and set(rows) == {"top_k", "ctx"}
        assert (rows["top_k"]["value"], rows["ctx"]["source"]) == (7, "LOCALSPEC_CTX")
        code, out, _ = run("config", "show")
        assert code == 0 and "default" in out and "temperature" in out

    def test_check_names_every_problem(self, run: Any, home: Path) -> None:
        assert run("config", "check")[0] == 0
        (home / "config").mkdir()
        (home / "config" / "config.toml").write_text("topk = 7\nctx = 0\n")
        user_rows(home, '[pairs.x]\ntarget = "nothing"\nkind = "ngram"\n')
        code, out, _ = run("config", "check", "--json")
        told = " ".join(row["message"] for row in json.loads(out)["problems"])
        assert code == 2 and "topk" in told and "ctx" in told and "nothing" in told


@pytest.mark.parametrize("group", ["models", "config"])
def test_an_unknown_subcommand(group: str, run: Any) -> None:
    code, _, err = run(group, "shwo")
    assert code == 2 and err.startswith("error: ")
