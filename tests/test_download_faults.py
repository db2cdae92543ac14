"""Wrong bytes, refusals and failures of the hub, the CDN and the network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from localspec.download import (
    RemoteFile,
    Retrying,
    Unit,
)
from localspec.download.part import CHUNK
from localspec.errors import ModelFileError, OutsideError, PermissionDeniedError, UsageError
from tests.kit import downloads
from tests.kit.downloads import DATA, QUICK, SIZE, fails, final, interrupted, notices, run, starts
from tests.kit.fakehub import GOOD_TOKEN, STRANGER_TOKEN, FakeHub, Fault

fake, models = downloads.fake, downloads.models


class TestWrongBytes:
    def test_a_flipped_byte_is_fetched_again_once(self, fake: FakeHub, models: Path) -> None:
        """Known fault 91: success is reported for a wrong hash."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("flip", at=1_234_567))
        assert "wrong SHA-256" in notices(run(models))[0]
        assert final(models).read_bytes() == DATA

    def test_wrong_twice_is_an_error_that_tells_where(self, fake: FakeHub, models: Path) -> None:
        """Known faults 91 and 99: no final file, and the first bad range when it is known."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("flip", at=10), Fault("flip", at=2_000_000))
        error = fails(models)
        assert isinstance(error, ModelFileError) and f"bytes 0–{CHUNK}" in error.message
        assert not list(models.rglob("*.part"))

    def test_wrong_twice_in_the_same_way_blames_the_server(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("flip", at=10)] * 2)
        assert "both downloads are the same" in fails(models).message

    def test_a_corrupted_part_heals_itself(self, fake: FakeHub, models: Path) -> None:
        """Known fault 99: digest mismatch after a resume, for ever."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        part = models / "o/r/a.gguf.part"
        kept = bytearray(part.read_bytes())
        kept[500_000] ^= 1
        part.write_bytes(kept)
        events = run(models)
        assert starts(fake) == [1_000_000, 0]
        assert len(notices(events)) == 1 and final(models).read_bytes() == DATA

    def test_a_pointer_file_is_refused(self, fake: FakeHub, models: Path) -> None:
        """Known fault 93: the LFS pointer instead of the weights."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("pointer", times=9))
        assert "Git LFS pointer" in fails(models).message

    @pytest.mark.parametrize("gated", [False, "manual"])
    def test_a_web_page_is_refused_and_gating_explained(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch, gated: bool | str
    ) -> None:
        """Known fault 94: an HTML page is saved as a model."""
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        fake.push("o/r", {"a.gguf": DATA}, gated=gated)
        fake.inject(Fault("html", times=9))
        error = fails(models)
        assert "web page" in error.message
        assert isinstance(error, PermissionDeniedError if gated else OutsideError)
        assert not gated or "accept its terms" in (error.hint or "")

    def test_content_that_is_no_gguf_is_refused_before_it_is_stored(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": b"PK\3\4" + bytes(2_000_000)})
        error = fails(models)
        assert isinstance(error, ModelFileError) and "`o/r/a.gguf` is not a GGUF file" in error.message
        assert [path.stat().st_size for path in models.rglob("*.part")] in ([], [0])

    def test_a_short_body_is_continued(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.inject(Fault("short", at=1_500_000))
        run(models)
        assert starts(fake) == [1_000_000, 1_500_000] and final(models).read_bytes() == DATA

    def test_a_file_of_another_size_is_refused(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("short", at=1, times=9))
        assert f"{SIZE - 1} bytes where the hub lists {SIZE}" in fails(models).message


class TestServersAndNetwork:
    @pytest.mark.parametrize("host", ["hub", "cdn"])
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_passing_failures_are_retried(self, fake: FakeHub, models: Path, host: Any, status: int) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=status, times=2, host=host))
        retries = [event for event in run(models) if isinstance(event, Retrying)]
        assert len(retries) == 2 and all(str(status) in retry.reason for retry in retries)
        assert retries[0].in_s < retries[1].in_s
        assert final(models).read_bytes() == DATA

    def test_retry_after_is_obeyed(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=429, retry_after=1))
        began = time.monotonic()
        (retry,) = [event for event in run(models) if isinstance(event, Retrying)]
        assert retry.in_s == 1.0 and time.monotonic() - began >= 1.0

    def test_patience_ends_with_an_outside_error(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=503, times=99))
        error = fails(models)
        assert error.exit_code == 3 and "503" in error.message
        assert len(fake.requests("cdn")) == QUICK.attempts

    def test_without_network_and_files_the_next_step_is_named(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        error = fails(models)
        assert error.exit_code == 3 and "cannot reach" in error.message and error.hint

    def test_forbidden_network_fails_at_once(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        error = fails(models)
        assert error.exit_code == 3 and "HF_HUB_OFFLINE" in error.message
        assert not fake.seen

    def test_gated_missing_token_and_no_access_are_three_messages(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA}, gated="manual")
        messages = set()
        for token in ("", "hf_wrong", STRANGER_TOKEN):
            monkeypatch.setenv("HF_TOKEN", token)
            error = fails(models)
            assert isinstance(error, PermissionDeniedError) and error.exit_code == 5
            messages.add(error.message)
        assert len(messages) == 3
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        run(models)
        assert final(models).read_bytes() == DATA

    def test_a_hub_that_serves_the_bytes_itself_gets_the_token(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        fake.push("o/r", {"a.gguf": DATA}, private=True)
        fake.redirects = False
        run(models)
        assert final(models).read_bytes() == DATA and not fake.requests("cdn")

    def test_an_unknown_file_is_a_usage_error(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        error = fails(models, Unit("pair", (RemoteFile("o/r", "b.gguf"),)))
        assert isinstance(error, UsageError) and "a.gguf" in (error.hint or "")

    def test_a_pin_that_the_hub_no_longer_meets_is_refused(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        error = fails(models, Unit("pair", (RemoteFile("o/r", "a.gguf", sha256="0" * 64),)))
        assert "not the pinned file" in error.message and not fake.requests("cdn")
