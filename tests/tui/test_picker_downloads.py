"""Downloads in the picker, against the fake hub: announced, followed, paused, resumed, cancelled, deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from localspec.catalog import read_pins
from localspec.download import Library, Queue, RemoteFile, Unit
from localspec.tui.picking.downloads import Downloads, Transfer
from localspec.tui.picking.services import free_bytes
from localspec.tui.screens.forms import AddPair, Choose
from localspec.tui.widgets.download_list import eta_text, line
from tests.kit import downloads
from tests.kit.fakehub import FakeHub, Fault
from tests.kit.ggufs import syn
from tests.tui.kit import run
from tests.tui.picker_kit import Picker, picking

fake = downloads.fake
Patch = pytest.MonkeyPatch
UNIT = Unit("tiny", (RemoteFile("o/r", "t.gguf"), RemoteFile("o/d", "d.gguf")))


@pytest.fixture(autouse=True)
def pair(fake: FakeHub) -> None:
    """The tiny pair is on the hub."""
    fake.push("o/r", {"t.gguf": syn("syn")})
    fake.push("o/d", {"d.gguf": syn("syn-near")})


async def marked(picker: Picker, name: str) -> None:
    """Mark a pair."""
    await picker.filter(name)
    await picker.wait(lambda: picker.screen.table.marked == name, f"{name} marked")


def state(picker: Picker, name: str = "tiny") -> str:
    row = picker.screen.row(name)
    return row.state if row else ""


async def start(picker: Picker) -> None:
    """Begin the download of the tiny pair."""
    await marked(picker, "tiny")
    await picker.press("d")
    await picker.see("Download tiny:")
    await picker.press("y")


class TestDownload:
    def test_size_and_room_are_shown_first_then_it_is_fetched_and_verified(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        """Known fault: a download that begins before size and free disk were shown; pairs by halves."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await marked(picker, "tiny")
                await picker.press("d")
                await picker.see("Download tiny: 0.00 GiB in 2 files?")
                for part in ("o/r/t.gguf", "o/d/d.gguf", "free,", "afterwards"):
                    assert part in picker.text(), part
                assert "With SIM 24GB-card, ctx 8192 · KV f16: fits, " in picker.text()
                assert "Draft: compatible" in picker.text()
                sizes = sum(syn(name).stat().st_size for name in ("syn", "syn-near"))
                assert fake.sent() < sizes / 2, "only headers are read before a yes"
                await picker.press("n")
                assert not picker.screen.downloads.queue.entries()
                await start(picker)
                await picker.see("tiny is downloaded and verified", 20)
                await picker.wait(lambda: state(picker) == "installed", "installed")
                assert not picker.screen.download_list.display
                library = Library(picker.config.models_dir)
                assert all(map(library.find, UNIT.files)), "both files, verified"
                await picker.wait(lambda: "draft: compatible" in picker.detail(), "the verdict")
                assert "figures from: header" in picker.detail() or "from: header" in picker.detail()
                assert ("o/r", "t.gguf") in read_pins()

        run(work())

    def test_a_draft_of_another_vocabulary_is_refused_before_the_first_byte(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        """Known fault 82: found out after gigabytes."""
        fake.push("o/d", {"d.gguf": syn("syn-8")})

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await marked(picker, "tiny")
                await picker.press("d")
                await picker.see("the vocabularies differ in 8 of 8")
                assert "Download tiny" not in picker.text()
                assert not picker.screen.downloads.queue.entries()

        run(work())

    def test_it_is_paused_resumed_and_goes_on_after_a_restart(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        """Known fault: a download that starts over after quitting."""
        fake.rate_bps = 200_000
        total = syn("syn").stat().st_size + syn("syn-near").stat().st_size

        async def first() -> None:
            async with picking(home, monkeypatch, size=(80, 24)) as picker:
                await start(picker)
                await picker.wait(lambda: picker.screen.download_list.display, "the list")
                await picker.wait(
                    lambda: "/s" in picker.text() and "left" in picker.text(), "rate and ETA", 20
                )
                await picker.press("p")
                await picker.wait(lambda: state(picker).startswith("paused"), "paused")
                assert "paused" in picker.text()
                await picker.press("r")
                await picker.wait(lambda: state(picker).startswith("downloading"), "resumed")

        async def second() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.see("tiny is downloaded and verified", 20)

        run(first())
        models = home / "data" / "models"
        assert [entry.state for entry in Queue(models).entries()] == ["queued"]
        assert Queue(models).fetched_bytes(UNIT) > 0
        fake.rate_bps = None
        run(second())
        # Pause, resume and restart may each fetch a chunk that the stop threw away, and no more.
        assert fake.sent() < 2 * total

    def test_cancelling_asks_and_removes_what_was_fetched(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        fake.rate_bps = 100_000

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await start(picker)
                await picker.wait(lambda: "B/s" in picker.text(), "progress", 20)
                await picker.press("x")
                await picker.see("Cancel the download of tiny and remove")
                await picker.press("n")
                assert picker.screen.downloads.transfer("tiny")
                await picker.press("x")
                await picker.see("Cancel the download of tiny")
                await picker.press("y")
                await picker.wait(lambda: not picker.screen.downloads.transfers(), "gone")
                models = picker.config.models_dir
                await picker.wait(lambda: not Queue(models).fetched_bytes(UNIT), "no bytes left")
                await picker.wait(lambda: state(picker) == "–", "not here")

        run(work())

    def test_deleting_keeps_what_another_pair_needs(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await start(picker)
                await picker.see("tiny is downloaded and verified", 20)
                await picker.wait(lambda: state(picker, "tiny-ngram") == "installed", "the same target")
                await picker.press("x")
                await picker.see("Delete these files of tiny")
                question = str(picker.app.screen.query(Static).first().content)
                assert "o/d/d.gguf" in question and "o/r/t.gguf" not in question
                await picker.press("y")
                await picker.see("deleted 1 files of tiny, kept 1 that other pairs need")
                await picker.wait(lambda: state(picker) != "installed", "gone")
                models = picker.config.models_dir
                assert (models / "o" / "r" / "t.gguf").is_file()
                assert not (models / "o" / "d" / "d.gguf").exists()
                assert state(picker, "tiny-ngram") == "installed"

        run(work())

    def test_a_pair_of_ones_own_without_files_can_be_forgotten(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.filter("tiny")
                await picker.press("x")
                await picker.see("Forget tiny? Its row is taken out of your models file")
                await picker.press("y")
                await picker.see("forgot tiny")
                await picker.wait(lambda: [row.name for row in picker.screen.rows if "tiny" in row.name]
                                  == ["tiny-ngram"], "its row went")  # fmt: skip
                text = (home / "config" / "models.toml").read_text()
                assert "[pairs.tiny-ngram]" in text and "[models.tiny-target]" in text
                assert "[pairs.tiny]" not in text and "tiny-draft" not in text

        run(work())

    def test_a_gated_repository_is_explained(self, fake: FakeHub, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a gated model that fails with a bare 401."""
        fake.push("o/g", {"d.gguf": syn("syn-near")}, gated="manual")

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                models = home / "config" / "models.toml"
                models.write_text(models.read_text().replace('repo = "o/d"', 'repo = "o/g"'))
                picker.screen.services.reload()
                await marked(picker, "tiny")
                await picker.press("d")
                await picker.see("Gated: accept the licence on the hub")
                await picker.press("y")
                await picker.wait(lambda: state(picker).startswith("failed"), "failed", 20)
                transfer = picker.screen.downloads.transfer("tiny")
                assert transfer and "o/g" in transfer.remark and "gated" in transfer.remark

        run(work())

    def test_a_full_disk_is_told_before_the_first_byte(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        usage = shutil.disk_usage(home)._replace(free=1 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await marked(picker, "tiny")
                await picker.press("d")
                await picker.see("tiny does not fit on the disk")
                assert not picker.screen.downloads.queue.entries()

        run(work())

    def test_a_failure_stays_in_the_list_with_its_reason(
        self, fake: FakeHub, home: Path, monkeypatch: Patch
    ) -> None:
        fake.inject(Fault("flip", at=300_000, times=9))  # behind the header

        async def work() -> None:
            async with picking(home, monkeypatch, size=(160, 40)) as picker:
                await start(picker)
                await picker.wait(lambda: state(picker).startswith("failed"), "failed", 30)
                assert "sha" in picker.text().lower() or "content" in picker.text().lower()
                fake.faults.clear()
                await picker.press("r")
                await picker.see("tiny is downloaded and verified", 20)

        run(work())

    def test_without_a_network_the_list_stands_and_the_reason_is_told(
        self, home: Path, monkeypatch: Patch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                assert "● fits" in picker.text()
                await marked(picker, "tiny")
                await picker.press("d")
                await picker.wait(
                    lambda: any(n.severity == "error" for n in picker.app._notifications), "an error", 30
                )
                assert not picker.screen.downloads.queue.entries()

        run(work())


class TestNewPairs:
    def test_files_found_on_this_disk_become_a_pair(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: files that another tool fetched are fetched again."""
        folder = home / ".lmstudio" / "models" / "me"
        folder.mkdir(parents=True)
        shutil.copy(syn("syn"), folder / "mine.gguf")

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.press("S")
                await picker.wait(lambda: isinstance(picker.app.screen, Choose), "the files")
                await picker.see("mine.gguf")
                assert "LM Studio" in picker.text()
                await picker.press("enter")
                await picker.wait(lambda: isinstance(picker.app.screen, AddPair), "the form")
                assert picker.app.screen.query_one("#new-target", Input).value == str(folder / "mine.gguf")
                await picker.press(*"mine", "enter", "enter", "enter")
                await picker.see("added mine: drafts by ngram")
                await picker.wait(lambda: picker.screen.table.marked == "mine", "marked")
                assert state(picker, "mine") == "installed"

        run(work())

    def test_a_wrong_draft_is_refused_and_what_was_typed_stays(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a draft with another vocabulary that is taken silently."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.press("a")
                await picker.wait(lambda: isinstance(picker.app.screen, AddPair), "the form")
                form = picker.app.screen
                for field, value in (("name", "bad"), ("target", syn("syn")), ("draft", syn("syn-8"))):
                    form.query_one(f"#new-{field}", Input).value = str(value)
                await picker.press("ctrl+s")
                await picker.wait(
                    lambda: any(n.severity == "error" for n in picker.app._notifications), "refused"
                )
                await picker.wait(lambda: isinstance(picker.app.screen, AddPair), "the form again")
                assert picker.app.screen.query_one("#new-name", Input).value == "bad"
                await picker.press("escape")
                assert picker.screen.row("bad") is None

        run(work())

    def test_drafts_are_suggested_for_the_marked_target(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await start(picker)
                await picker.see("tiny is downloaded and verified", 20)
                await picker.press("D")
                await picker.wait(lambda: isinstance(picker.app.screen, Choose), "the drafts")
                await picker.see("tiny-draft")
                assert "compatible" in picker.text() and "this disk" in picker.text()

        run(work())


class TestParts:
    def test_a_line_has_bar_share_rate_and_time_left(self) -> None:
        shown = line(Transfer("pair", "downloading", 3 << 30, 12 << 30, 50e6, 195.0))
        for part in ("██▌···", "25 %", "pair", "3.2 GB of 12.9 GB", "50.0 MB/s", "3 min left"):
            assert part in shown, part
        unknown = line(Transfer("pair", "queued", 0, None))
        assert "– %" in unknown and "queued" in unknown and "of ?" in unknown

    @pytest.mark.parametrize(
        ("seconds", "text"), [(45, "45 s"), (89, "89 s"), (720, "12 min"), (12_000, "3 h 20 min")]
    )
    def test_times(self, seconds: float, text: str) -> None:
        assert eta_text(seconds) == text

    def test_free_space_of_a_folder_that_is_not_made_yet(self, tmp_path: Path) -> None:
        free = shutil.disk_usage(tmp_path).free
        assert free_bytes(tmp_path / "a" / "b") == pytest.approx(free, rel=0.1)

    def test_what_another_process_queued_is_listed(self, tmp_path: Path) -> None:
        watching = Downloads(tmp_path, lambda repo, path: 1000)
        Queue(tmp_path).add(UNIT)
        Queue(tmp_path).pause("tiny")
        assert watching.transfers() == (Transfer("tiny", "paused", 0, 2000),)
