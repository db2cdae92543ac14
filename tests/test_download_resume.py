"""Interrupted downloads go on where they were, and only where the bytes are the same file's."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localspec.download import (
    Checking,
    Event,
    Finished,
    Notice,
    Policy,
    Progress,
    Retrying,
    Verified,
    pull,
)
from localspec.download.part import CHUNK
from localspec.errors import LocalspecError, OutsideError
from tests.kit import downloads
from tests.kit.downloads import DATA, QUICK, SIZE, UNIT, fails, final, interrupted, notices, run, starts
from tests.kit.fakehub import FakeHub, Fault, gguf

fake, models = downloads.fake, downloads.models


class TestResume:
    def test_a_second_run_goes_on_where_the_first_was_cut(self, fake: FakeHub, models: Path) -> None:
        """Known fault 90: a broken download restarts at 0."""
        fake.push("o/r", {"a.gguf": DATA})
        cut = SIZE * 40 // 100
        interrupted(fake, models, cut)
        note = json.loads((models / "o/r/a.gguf.part.json").read_text())
        assert set(note) == {"repo", "path", "commit", "size", "sha256", "url", "etag", "done"}
        assert "Signature" not in note["url"], "a signed link is a key: it is not kept"
        events = run(models)
        assert starts(fake) == [cut]
        assert fake.requests("cdn")[0].headers["if-range"] == note["etag"]
        assert final(models).read_bytes() == DATA
        assert not notices(events)
        assert any(isinstance(event, Checking) and event.done == cut for event in events)

    def test_cuts_are_retried_within_a_run(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("cut", at=500_000)] * 5)
        events = run(models)  # more cuts than attempts: each brought bytes
        assert starts(fake) == [500_000 * n for n in range(6)]
        assert sum(isinstance(event, Retrying) for event in events) == 5
        assert final(models).read_bytes() == DATA

    def test_a_stall_is_given_up_and_retried(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("stall", at=1_000_000))
        began = time.monotonic()
        events = run(models, policy=Policy(stall_s=0.5, backoff_s=0.01))
        (retry,) = [event for event in events if isinstance(event, Retrying)]
        assert "sent nothing for 0.5 s" in retry.reason
        assert 0.5 < time.monotonic() - began < 10
        assert starts(fake) == [0, 1_000_000]

    def test_an_expired_link_is_resolved_again_once(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("expire", at=1_000_000))
        run(models)
        assert [seen.status for seen in fake.requests("cdn")] == [200, 403, 206]
        assert len(fake.requests("hub", "HEAD")) == 2
        assert final(models).read_bytes() == DATA

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_fresh_link_that_is_refused_too_ends_it(self, fake: FakeHub, models: Path, status: int) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=status, times=9))
        error = fails(models)
        assert isinstance(error, OutsideError) and "also with a fresh link" in error.message
        assert len(fake.requests("cdn")) == 2

    def test_a_server_that_ignores_ranges_costs_bytes_but_no_progress(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_200_000)
        fake.inject(Fault("ignore_range"))
        events = run(models)
        done = [event.done for event in events if isinstance(event, Progress)]
        assert done[0] == 1_200_000 and done == sorted(done)
        assert starts(fake) == [0] and final(models).read_bytes() == DATA

    def test_a_changed_etag_restarts_and_says_so(self, fake: FakeHub, models: Path) -> None:
        """Known fault 95: a resume appends to another version of the file."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.age_etags()
        events = run(models)
        assert "changed on the server" in notices(events)[0]
        assert starts(fake)[-1] == 0 and final(models).read_bytes() == DATA

    def test_etags_that_never_agree_cannot_make_it_endless(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("new_etag", at=700_000)] * 20)
        events = run(models)
        assert len(notices(events)) == 1, "after one change the digest alone decides"
        assert final(models).read_bytes() == DATA

    def test_if_range_is_only_sent_to_the_server_the_etag_came_from(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        note = models / "o/r/a.gguf.part.json"
        note.write_text(note.read_text().replace(fake.cdn, "http://other.example"))
        assert not notices(run(models))
        (request,) = fake.requests("cdn")
        assert request.start == 1_000_000 and "if-range" not in request.headers

    def test_a_new_version_on_the_hub_restarts_and_says_so(self, fake: FakeHub, models: Path) -> None:
        """Known fault 95: the repository moved on between two runs."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        newer = gguf(SIZE, seed=7)
        fake.push("o/r", {"a.gguf": newer})
        assert "another version on the hub" in notices(run(models))[0]
        assert starts(fake) == [0] and final(models).read_bytes() == newer

    def test_a_new_commit_with_the_same_content_goes_on(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.push("o/r", {"a.gguf": DATA, "README.md": b"new words"})
        assert not notices(run(models))
        assert starts(fake) == [1_000_000]

    def test_the_commit_is_pinned_while_it_lasts(self, fake: FakeHub, models: Path) -> None:
        commit = fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("expire", at=1_000_000))
        for event in pull([UNIT], models, policy=QUICK):
            if isinstance(event, Progress) and event.done == 0:
                fake.push("o/r", {"a.gguf": gguf(SIZE, seed=7)})
        assert final(models).read_bytes() == DATA
        assert all(f"/resolve/{commit}/" in seen.path for seen in fake.requests("hub", "HEAD"))

    @pytest.mark.parametrize("what", ["no note", "broken note", "another repo", "far too long", "too short"])
    def test_a_part_of_unknown_origin_is_not_continued(self, fake: FakeHub, models: Path, what: str) -> None:
        """Known fault 103: a half-written or foreign partial is reused."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.push("other/repo", {"a.gguf": gguf(SIZE, seed=5)})
        interrupted(fake, models, 1_000_000)
        part, note = models / "o/r/a.gguf.part", models / "o/r/a.gguf.part.json"
        facts = json.loads(note.read_text())
        if what == "no note":
            note.unlink()
        elif what == "broken note":
            note.write_text("{")
        elif what == "another repo":
            note.write_text(json.dumps({**facts, "repo": "other/repo", "sha256": "0" * 64}))
        elif what == "far too long":
            part.write_bytes(part.read_bytes() + bytes(CHUNK + 1))
        else:
            part.write_bytes(part.read_bytes()[:400_000])
        events = run(models)
        expected = {"far too long": 1_000_000, "too short": 400_000}.get(what, 0)
        assert starts(fake) == [expected]
        assert bool(notices(events)) == (expected == 0)
        assert final(models).read_bytes() == DATA

    def test_416_means_another_file_and_restarts(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.inject(Fault("status", status=416))
        assert "shorter on the server" in notices(run(models))[0]
        assert final(models).read_bytes() == DATA

    def test_a_server_that_never_resumes_cannot_make_it_endless(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("cut", at=1_000_000), Fault("status", status=416)] * 9)
        assert "again and again" in fails(models).message
        assert len(starts(fake)) == 3

    def test_a_complete_part_needs_no_byte_more(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, SIZE - 1)
        part, note = models / "o/r/a.gguf.part", models / "o/r/a.gguf.part.json"
        part.write_bytes(DATA)
        note.write_text(json.dumps({**json.loads(note.read_text()), "done": SIZE}))
        run(models)
        assert not fake.requests("cdn") and final(models).read_bytes() == DATA


class TestAnything:
    FAULTS = st.one_of(
        st.builds(Fault, st.just("cut"), at=st.integers(0, SIZE)),
        st.builds(Fault, st.just("expire"), at=st.integers(0, SIZE)),
        st.builds(Fault, st.just("flip"), at=st.integers(4, SIZE - 1)),
        st.builds(Fault, st.sampled_from(["ignore_range", "new_etag"])),
        st.builds(Fault, st.just("status"), status=st.sampled_from([403, 416, 429, 500, 503])),
    )

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(faults=st.lists(FAULTS, max_size=6))
    @example(faults=[Fault("cut", at=7), Fault("ignore_range"), Fault("expire", at=1), Fault("flip", at=9)])
    def test_whatever_happens_the_bytes_are_right_or_there_are_none(
        self, fake: FakeHub, tmp_path: Path, faults: list[Fault]
    ) -> None:
        models = Path(tempfile.mkdtemp(dir=tmp_path))
        fake.push("o/r", {"a.gguf": DATA})
        fake.faults = [Fault(**vars(fault)) for fault in faults]
        events: list[Event] = []
        for _ in range(len(faults) + 2):  # each run may be ended by a fault; none may be lost for good
            try:
                for event in pull([UNIT], models, policy=QUICK):
                    assert final(models).exists() <= isinstance(event, Verified | Finished | Progress)
                    events.append(event)
                break
            except LocalspecError as error:
                assert error.exit_code in (1, 3)
                assert not final(models).exists()
                events.append(Notice("restart", "a new run"))
        assert final(models).read_bytes() == DATA
        done = 0
        for event in events:
            if isinstance(event, Notice) and event.kind == "restart":
                done = 0
            elif isinstance(event, Progress):
                assert done <= event.done <= SIZE
                done = event.done
