"""A drafter that was reset or switched off shows wherever a reply's numbers do."""

from __future__ import annotations

from dataclasses import replace

from localspec.api.replies import speculation_report
from localspec.batch.run import Tally
from localspec.engine.events import Done, Notice
from localspec.server.metrics import Metrics
from localspec.tui.status import SpecState
from tests.kit.scripted import summary

SPOILED = replace(summary(8), resets=("draft",), given_up=("draft",))
OFF = Notice(
    "off", "the `draft` drafter had all its drafts rejected again, also after a reset: off in this chat"
)


def test_a_reply_of_the_api_lists_it() -> None:
    report = speculation_report(SPOILED, [Notice("reset", "why"), OFF], None)
    assert (report.resets, report.given_up, report.off_reason) == (["draft"], ["draft"], OFF.reason)
    assert [n.kind for n in report.notices] == ["reset", "off"]


def test_metrics_count_it() -> None:
    metrics = Metrics()
    metrics.finished(Done("stop", SPOILED))
    metrics.finished(Done("stop", replace(SPOILED, resets=())))
    text = metrics.render().decode()
    assert 'localspec_drafters_spoiled_total{action="reset",method="draft"} 1.0' in text
    assert 'localspec_drafters_spoiled_total{action="off",method="draft"} 2.0' in text


def test_the_status_line_says_off_and_a_reset_ends_a_pause() -> None:
    assert SpecState("paused", "slower").noticed(Notice("reset", "why")) == SpecState("on")
    assert str(SpecState("on").noticed(OFF)) == f"spec off: {OFF.reason}"


def test_a_batch_names_it_in_its_last_line() -> None:
    tally = Tally(2, answered=2, given_up=["draft"])
    assert tally.line().endswith("the `draft` drafter looked broken and was switched off")
