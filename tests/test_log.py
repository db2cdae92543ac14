"""The log file appears with its first line and never gets in the way."""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from localspec.log import LOGGER, log_exception, start_log, stop_log


@pytest.fixture(autouse=True)
def closed() -> Generator[None, None, None]:
    yield
    stop_log()
    logging.getLogger(LOGGER).propagate = True


def test_the_file_is_made_by_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "localspec.log"
    start_log(file)
    assert not file.parent.exists()
    logging.getLogger(LOGGER).getChild("llama").info("llama_model_load: done")
    assert "INFO localspec.llama: llama_model_load: done" in file.read_text()


def test_starting_twice_writes_a_line_once(tmp_path: Path) -> None:
    start_log(tmp_path / "one.log")
    start_log(tmp_path / "two.log")
    logging.getLogger(LOGGER).warning("once")
    assert not (tmp_path / "one.log").exists()
    assert (tmp_path / "two.log").read_text().count("once") == 1


def test_an_exception_keeps_its_traceback(tmp_path: Path) -> None:
    start_log(tmp_path / "it.log")
    try:
        raise KeyError("lost")
    except KeyError as error:
        assert log_exception(error) == tmp_path / "it.log"
    text = (tmp_path / "it.log").read_text()
    assert "Traceback" in text and "KeyError: 'lost'" in text


def test_a_place_that_cannot_be_written_is_silent_and_told_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    start_log(tmp_path / "file" / "below" / "it.log")
    logging.getLogger(LOGGER).error("lost")
    assert log_exception(ValueError("x")) is None
    assert capfd.readouterr() == ("", "")
