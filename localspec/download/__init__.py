"""Download pairs: resumable, verified, queued on disk, one downloader per file.

units = [Unit("pair", (RemoteFile("owner/repo", "target.gguf"), RemoteFile("owner/repo", "draft.gguf")))]
for event in pull(units, models_dir):
    ...
"""

from localspec.download.control import Policy
from localspec.download.digest import verify, verifying
from localspec.download.events import (
    Checking,
    Event,
    Failed,
    Finished,
    Notice,
    Owner,
    Progress,
    Retrying,
    Started,
    Stopped,
    Verified,
    Waiting,
)
from localspec.download.library import Library, Record, installed
from localspec.download.queue import Entry, Queue, remove
from localspec.download.runner import Pull, pull, run_queue
from localspec.download.units import RemoteFile, Unit

__all__ = [
    "Checking",
    "Entry",
    "Event",
    "Failed",
    "Finished",
    "Library",
    "Notice",
    "Owner",
    "Policy",
    "Progress",
    "Pull",
    "Queue",
    "Record",
    "RemoteFile",
    "Retrying",
    "Started",
    "Stopped",
    "Unit",
    "Verified",
    "Waiting",
    "installed",
    "pull",
    "remove",
    "run_queue",
    "verify",
    "verifying",
]
