"""The Hugging Face hub: what a repository holds, where its bytes are, and ranges of them.

The only importer of huggingface_hub, and late: its metadata, URL and token helpers are used, never its
downloader, which starts an interrupted file over and changes protocol when the hub says so. Knows
nothing of folders for models, resuming or progress (`localspec.download`), nor of GGUF.

`HF_*` variables are honoured as they are at the call: the library freezes most of them at import.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from localspec import __version__
from localspec.atomic import replace_file
from localspec.errors import LocalspecError, OutsideError, PermissionDeniedError, UsageError, unknown
from localspec.locations import locations
from localspec.transport import Link, LinkExpired, Unavailable, open_bytes, origin, retry_after

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

METADATA_TIMEOUT_S = 10.0
RANGE_STALL_S = 15.0
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """One file of a repository at one commit."""

    repo: str
    path: str
    commit: str
    size: int
    sha256: str | None
    """From the LFS metadata; None for the rare file kept in git itself."""
    etag: str
    """The hub's own: the SHA-256 of an LFS file, else its git blob id. Never sent to a byte server."""
    gated: bool | None = None
    """None when the answer did not say."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    gated: bool
    files: tuple[FileMetadata, ...]

    def file(self, path: str) -> FileMetadata:
        """The file at `path`; a `UsageError` that names the nearest one when there is none."""
        for file in self.files:
            if file.path == path:
                return file
        raise unknown(f"file of `{self.repo}`:", path, [file.path for file in self.files])


def check_name(repo: str, path: str) -> None:
    """Refuse names that are no repository or would leave the folder they are joined to.

    Raises:
        UsageError: not `owner/name`, or a path that is absolute, climbs or names a drive.
    """
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise UsageError(f"`{repo}` is not a repository name", hint="expected `owner/name`")
    pure = PurePosixPath(path)
    if not pure.name or pure.is_absolute() or ".." in pure.parts or set(path) & set('\\:*?"<>|\0'):
        raise UsageError(f"`{path}` is not a file name inside a repository")


def endpoint() -> str:
    """Base URL of the hub, without a slash at the end."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def cache_dir() -> Path:
    """Hugging Face's own cache of repositories."""
    env = os.environ
    if found := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(found)).expanduser()
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def offline() -> bool:
    """True when the user has forbidden requests."""
    return (os.environ.get("HF_HUB_OFFLINE") or "").upper() in _TRUE


def cached_copies(repo: str, path: str) -> Iterator[Path]:
    """Copies of a file in Hugging Face's cache, of whatever commit.

    Reads the documented layout (`models--owner--name/snapshots/<commit>/<path>`) without the library.
    """
    for snapshot in sorted(_cached_repo(repo).glob("snapshots/*")):
        if (snapshot / path).is_file():
            yield snapshot / path


def cached_snapshot(repo: str, revision: str) -> Path | None:
    """The cache's folder for the commit that `revision` is, or was when the cache last asked."""
    root = _cached_repo(repo)
    ref = root / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    folder = root / "snapshots" / commit
    return folder if folder.is_dir() else None


def _cached_repo(repo: str) -> Path:
    return cache_dir() / f"models--{repo.replace('/', '--')}"


def blob_sha256(copy: Path) -> str | None:
    """The SHA-256 that a file of the cache should have: its blob is named by it."""
    name = copy.resolve().name
    return name if _SHA256.fullmatch(name) else None


def list_files(repo: str, revision: str = "main") -> Listing:
    """Every file of `repo` at `revision`, in one request that also pins the commit.

    Raises:
        PermissionDeniedError: gated or private, token missing or refused.
        UsageError: no such repository or revision.
        OutsideError: no connection (`Unavailable`), or offline mode.
    """
    _require_online(repo)
    with _translated(repo):
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint(), library_name="localspec", library_version=__version__)
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=METADATA_TIMEOUT_S)
    commit, gated = info.sha or revision, bool(info.gated)
    files = tuple(
        FileMetadata(
            repo=repo,
            path=entry.rfilename,
            commit=commit,
            size=entry.size or 0,
            sha256=entry.lfs.sha256 if entry.lfs else None,
            etag=entry.lfs.sha256 if entry.lfs else entry.blob_id or "",
            gated=gated,
        )
        for entry in info.siblings or ()
    )
    return Listing(repo, commit, gated, files)


def file_metadata(repo: str, path: str, revision: str = "main") -> FileMetadata:
    """Size, SHA-256, commit and gating of one file; raises as `list_files` does."""
    return list_files(repo, revision).file(path)


def resolve(repo: str, path: str, revision: str) -> tuple[FileMetadata, Link]:
    """Ask the hub where the bytes of a file are; raises as `list_files` does.

    The token goes along only to the hub's own origin (scheme, host and port).
    """
    _require_online(f"{repo}/{path}")
    hub = endpoint()
    with _translated(repo):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = build_hf_headers(library_name="localspec", library_version=__version__)
        url = hf_hub_url(repo, path, revision=revision, endpoint=hub)
        found = get_hf_file_metadata(url, headers=headers, timeout=METADATA_TIMEOUT_S, endpoint=hub)
    etag = found.etag or ""
    metadata = FileMetadata(
        repo=repo,
        path=path,
        commit=found.commit_hash or revision,
        size=found.size or 0,
        sha256=etag if _SHA256.fullmatch(etag) else None,
        etag=etag,
    )
    return metadata, Link(found.location, headers if origin(found.location) == origin(hub) else {})


class HttpRangeSource:
    """Bytes of a remote file by range: the prefix read so far is kept on disk by commit.

    A GGUF header is a prefix, so one file per remote file is enough and a second look costs at most the
    request that asks which commit a branch is at; a commit id costs none. Not safe for two threads.
    """

    FIRST = 64 * 1024
    """Bytes of the first request: the hyper-parameters come before the tokenizer."""
    STEP = 4 * 1024 * 1024
    """Largest read-ahead."""
    KEPT = 64 * 1024 * 1024
    """Prefix beyond which nothing is kept: no header is that long."""

    def __init__(self, repo: str, file: str, revision: str = "main", *, cache: Path | None = None) -> None:
        """Find the file's commit and size.

        Args:
            cache: folder to keep prefixes in; by default `headers` in localspec's cache.

        Raises:
            PermissionDeniedError, UsageError, OutsideError: as `list_files`; without a connection the
                commit seen last is used when there is one.
        """
        check_name(repo, file)
        self._cache = (cache or locations().cache_dir / "headers") / repo
        self._link: Link | None = None
        known = self._known(revision, file) if _COMMIT.fullmatch(revision) else None
        self.metadata = known or self._ask(repo, file, revision)
        self._kept_file = self._cache / _slug(self.metadata.commit) / f"{file}.head"
        self._prefix = b""
        with suppress(OSError):  # a cache may be missing or unreadable
            self._prefix = self._kept_file.read_bytes()

    @property
    def size(self) -> int:
        """Bytes of the whole remote file."""
        return self.metadata.size

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at `offset`; shorter than `length` only at the end of the file.

        Raises:
            OutsideError: no connection, or the server sent something else than the file.
            PermissionDeniedError: gated, or the token was refused.
        """
        end = min(offset + length, self.size)
        if end > self.KEPT or offset > len(self._prefix) + self.STEP:
            return self._fetch(offset, end) if end > offset else b""
        if end > len(self._prefix):
            have = len(self._prefix)
            ahead = min(max(end, self.FIRST, have + min(have, self.STEP)), self.size)
            self._prefix += self._fetch(have, ahead)
            self._keep(self._kept_file, self._prefix)
        return self._prefix[offset:end]

    @staticmethod
    def _keep(path: Path, data: bytes) -> None:
        with suppress(OSError):  # a cache that cannot be written costs requests, not answers
            replace_file(path, data)

    def _known(self, revision: str, file: str) -> FileMetadata | None:
        try:
            return FileMetadata(**json.loads(self._note(revision, file).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _note(self, revision: str, file: str) -> Path:
        return self._cache / _slug(revision) / f"{file}.json"

    def _ask(self, repo: str, file: str, revision: str) -> FileMetadata:
        try:
            metadata, self._link = resolve(repo, file, revision)
        except OutsideError:
            if known := self._known(revision, file):
                return known
            raise
        for name in {revision, metadata.commit}:
            self._keep(self._note(name, file), json.dumps(asdict(metadata)).encode())
        return metadata

    def _fetch(self, start: int, end: int) -> bytes:
        """One more try with a fresh link after an expired one or a broken connection."""
        try:
            return self._fetch_once(start, end)
        except (LinkExpired, Unavailable):
            self._link = None
            return self._fetch_once(start, end)

    def _fetch_once(self, start: int, end: int) -> bytes:
        file = self.metadata
        if self._link is None:
            _, self._link = resolve(file.repo, file.path, file.commit)
        got = bytearray()
        with open_bytes(self._link, start=start, end=end, stall_s=RANGE_STALL_S) as body:
            if body.content_type == "text/html" or body.total not in (None, file.size):
                raise OutsideError(f"`{body.site}` sent something else than `{file.path}` of `{file.repo}`")
            if not start - self.KEPT <= body.start <= start:
                raise OutsideError(f"`{body.site}` does not serve parts of files")
            for chunk in body.chunks:
                got += chunk
                if body.start + len(got) >= end:
                    break
        wanted = bytes(got[start - body.start : end - body.start])
        if len(wanted) < end - start:
            raise Unavailable(f"`{body.site}` ended after {len(wanted)} of {end - start} bytes")
        return wanted


def _slug(revision: str) -> str:
    """One folder name for a branch, tag or commit, whatever a server calls it."""
    return quote(revision, safe="").replace("..", "%2E%2E")


def _require_online(what: str) -> None:
    if offline():
        raise OutsideError(
            f"`{what}` is not on this disk and HF_HUB_OFFLINE forbids asking for it",
            hint="unset HF_HUB_OFFLINE, or choose a pair that is on this disk (`localspec models ls`)",
        )


@contextmanager
def _translated(repo: str) -> Iterator[None]:
    """Turn what the library raises about `repo` into localspec's errors."""
    # Read once, at the library's import: no telemetry, and no lines on stderr, where a TUI paints.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"`{repo}` is not a repository name", hint="expected `owner/name`") from error
    except errors.OfflineModeIsEnabled as error:
        raise OutsideError(f"`{repo}` was not asked: the hub client is in offline mode") from error
    except errors.HfHubHTTPError as error:
        raise _refusal(error, repo) from error
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise UsageError(f"HF_ENDPOINT `{endpoint()}` is not a web address: {error}") from error
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"cannot reach `{endpoint()}`: {error or type(error).__name__}",
            hint="check the connection; files already on this disk work without it",
        ) from error
    except ValueError as error:  # a login or proxy page where JSON belongs
        raise OutsideError(
            f"`{endpoint()}` answered with something else than the hub's API",
            hint="a proxy or a login page may stand in between; check HF_ENDPOINT",
        ) from error


def _refusal(error: HfHubHTTPError, repo: str) -> LocalspecError:
    """The error for an answer of 4xx or 5xx."""
    from huggingface_hub import errors

    status, said = error.response.status_code, error.server_message or ""
    with_token = "authorization" in error.response.request.headers
    page = f"{endpoint()}/{repo}"
    if status == 401 and with_token and not isinstance(error, errors.GatedRepoError):
        return PermissionDeniedError(
            f"the hub rejects the Hugging Face token that was sent for `{repo}`",
            hint="get a new one at https://huggingface.co/settings/tokens, then set HF_TOKEN",
        )
    if isinstance(error, errors.GatedRepoError):
        return _gated(repo, page, said, with_token=with_token)
    if isinstance(error, errors.DisabledRepoError):
        return LocalspecError(
            f"`{repo}` has been disabled on the hub", hint="choose another source of this model"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        if status == 401:
            return PermissionDeniedError(
                f"`{repo}` does not exist, or is private and no Hugging Face token is set",
                hint="check the name; for a private repository set HF_TOKEN or run `hf auth login`",
            )
        return UsageError(f"no repository `{repo}` on the hub", hint=f"check the name at {page}")
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(f"no such revision of `{repo}`", hint=f"see {page}/commits/main")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return UsageError(f"no such file in `{repo}`", hint=f"see {page}/tree/main")
    if status in (401, 403):
        return PermissionDeniedError(f"no permission to read `{repo}`: {said or status}", hint=f"see {page}")
    if status in (408, 425, 429) or status >= 500:
        passing = Unavailable(f"the hub answered {status} for `{repo}`", hint="try again later")
        passing.retry_after_s = retry_after(error.response.headers)
        return passing
    return OutsideError(f"the hub answered {status} for `{repo}`: {said}".rstrip(": "))


def _gated(repo: str, page: str, said: str, *, with_token: bool) -> PermissionDeniedError:
    if not with_token:
        return PermissionDeniedError(
            f"`{repo}` is gated and no Hugging Face token is set",
            hint=f"accept its terms at {page}, then set HF_TOKEN or run `hf auth login`",
        )
    if "awaiting" in said:
        return PermissionDeniedError(
            f"access to gated `{repo}` was asked for and its authors have not answered yet",
            hint=f"see {page}",
        )
    return PermissionDeniedError(
        f"the Hugging Face account of this token has no access to gated `{repo}`",
        hint=f"accept its terms at {page} with the same account",
    )
