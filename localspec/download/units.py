"""What is downloaded: a unit of remote files, a split GGUF being one file of it.

Names only; knows nothing of the network, and of the disk only where a name would lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from localspec.header.source import shard_paths
from localspec.hub import check_name


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a hub repository; any part of a split GGUF stands for all of them.

    Raises:
        UsageError: no repository name, or a path that leaves the repository.
    """

    repo: str
    """`owner/name`."""
    path: str
    """Path inside the repository, with `/`."""
    revision: str = "main"
    """Branch, tag or commit."""
    sha256: str | None = None
    """Pinned digest: nothing else is accepted. Of the first part when the file is split."""

    def __post_init__(self) -> None:
        check_name(self.repo, self.path)

    def __str__(self) -> str:
        return f"{self.repo}/{self.path}"

    @property
    def parts(self) -> tuple[RemoteFile, ...]:
        """All parts of a split GGUF in order, else the file alone."""
        paths = [path.as_posix() for path in shard_paths(Path(self.path))]
        if len(paths) == 1:
            return (self,)
        return (
            replace(self, path=paths[0]),
            *(replace(self, path=path, sha256=None) for path in paths[1:]),
        )

    def local(self, models_dir: Path) -> Path:
        """Where this file lies once downloaded: `<models-dir>/<owner>/<repo>/<path>`."""
        return models_dir / self.repo / self.path


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are only useful together: a target and what drafts for it."""

    name: str
    files: tuple[RemoteFile, ...]
