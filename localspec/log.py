"""The log file: what llama.cpp says and tracebacks go there, never to the screen.

Knows the file only. The directory is made with the first line: a command that logs nothing leaves no trace.
"""

from __future__ import annotations

import logging
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOGGER = "localspec"
MAX_BYTES = 2_000_000


class _FirstLineMakesFile(RotatingFileHandler):
    failed: str | None = None

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:
        # A log that cannot be written must not end the work or paint over a screen.
        self.failed = "cannot be written"
        self.close()


def start_log(file: Path, level: int = logging.INFO) -> None:
    """Send everything below the logger `localspec` to a file that rotates at 2 MB; once per process."""
    logger = logging.getLogger(LOGGER)
    stop_log()
    handler = _FirstLineMakesFile(file, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def stop_log() -> None:
    """Close the log file."""
    logger = logging.getLogger(LOGGER)
    for handler in [h for h in logger.handlers if isinstance(h, _FirstLineMakesFile)]:
        logger.removeHandler(handler)
        handler.close()


def log_exception(error: BaseException) -> Path | None:
    """Write a traceback to the log. Returns the file, or None when it could not be written."""
    logger = logging.getLogger(LOGGER)
    logger.error("unexpected %s", type(error).__name__, exc_info=error)
    for handler in logger.handlers:
        if isinstance(handler, _FirstLineMakesFile) and handler.failed is None:
            return Path(handler.baseFilename)
    return None
