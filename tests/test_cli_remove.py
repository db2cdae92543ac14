"""Deleting pairs: their files, what was pinned of them, and the rows of a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localspec.catalog import read_pins
from tests.kit import downloads, userpairs
from tests.kit.fakehub import FakeHub
from tests.kit.ggufs import syn
from tests.kit.userpairs import ROWS, user_rows

fake = downloads.fake
models, pair, run = userpairs.models, userpairs.pair, userpairs.run


class TestRemove:
    def test_rm_takes_the_files_and_the_pins(self, run: Any, pair: FakeHub, models: Path) -> None:
        run("pull", "tiny-pair")
        code, out, _ = run("models", "rm", "tiny-pair", "--json")
        assert code == 0 and len(json.loads(out)["removed"]) == 2
        assert not list(models.rglob("*.gguf")) and not read_pins()

    def test_rm_keeps_what_another_pair_needs(
        self, run: Any, home: Path, pair: FakeHub, models: Path
    ) -> None:
        user_rows(
            home, ROWS.format(target="target.gguf") + '[pairs.alone]\ntarget = "tiny"\nkind = "ngram"\n'
        )
        run("pull", "tiny-pair")
        code, _, err = run("models", "rm", "tiny-pair")
        assert code == 0 and "kept `target.gguf`" in err
        assert [path.name for path in models.rglob("*.gguf")] == ["target.gguf"]

    def test_rm_forgets_a_file_that_was_renamed_on_the_hub(
        self, run: Any, home: Path, pair: FakeHub, models: Path
    ) -> None:
        """A pin that stays would look for the old commit at the next pull."""
        user_rows(home, ROWS.format(target="old-Q4_K_M.gguf"))
        pair.push("o/target", {"new-Q4_K_M.gguf": syn("syn").read_bytes()})
        run("pull", "tiny-pair")
        assert ("o/target", "old-Q4_K_M.gguf") in read_pins()
        assert run("models", "rm", "tiny-pair")[0] == 0
        assert not list(models.rglob("*.gguf")) and not read_pins()

    def test_rm_takes_a_pair_of_ones_own_out_of_the_models_file(
        self, run: Any, home: Path, tmp_path: Path
    ) -> None:
        mine = tmp_path / "mine.gguf"
        mine.write_bytes(syn("syn").read_bytes())
        user_rows(home, "# kept\n")
        assert run("models", "add", "mine", "--target", str(mine), "--draft", str(syn("syn-w")))[0] == 0
        assert run("models", "add", "alone", "--target", str(mine))[0] == 0
        code, out, err = run("models", "rm", "mine", "--json")
        assert code == 0 and json.loads(out) == {"removed": [], "rows": ["pairs.mine", "models.syn-w"]}
        assert "took [pairs.mine], [models.syn-w] out of" in err and mine.is_file()
        assert run("models", "add", "mine", "--target", str(mine))[0] == 0, "the name is free again"
        for name in ("mine", "alone"):
            assert run("models", "rm", name)[0] == 0
        assert (home / "config" / "models.toml").read_text() == "# kept\n"

    def test_rm_says_that_the_default_pair_went(self, run: Any, home: Path) -> None:
        user_rows(home)
        (home / "config" / "config.toml").write_text('default_pair = "tiny-pair"\n')
        _, _, err = run("models", "rm", "tiny-pair")
        assert "`tiny-pair` was the default pair" in err

    def test_rm_can_keep_the_row(self, run: Any, home: Path, pair: FakeHub, models: Path) -> None:
        run("pull", "tiny-pair")
        code, out, _ = run("models", "rm", "tiny-pair", "--keep-row", "--json")
        assert code == 0 and json.loads(out)["rows"] == [] and not list(models.rglob("*.gguf"))
        assert "[pairs.tiny-pair]" in (home / "config" / "models.toml").read_text()
        rows = json.loads(run("pick-models", "--list", "--json", "--budget", "24GiB")[1])["pairs"]
        kept = next(row for row in rows if row["name"] == "tiny-pair")
        assert (kept["state"], kept["fit"]) == ("not downloaded", "fits"), "its headers are still known"

    def test_rm_leaves_files_that_were_not_downloaded(self, run: Any) -> None:
        code, _, err = run("models", "rm", "demo")
        assert code == 2 and "stay where they are" in err
