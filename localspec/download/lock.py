"""One downloader per file: a lock file that says who holds it.

The operating system's lock decides where it works, and dies with its process. Where it does not (some
network file systems refuse it, some only pretend), the owner named in the file counts: dead when its
process is gone, or when another machine has not touched the file for `STALE_S` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

from localspec.download.events import Owner
from localspec.download.units import RemoteFile

STALE_S = 60.0
SETTLE_S = 0.2

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # Windows locks are mandatory: lock a byte that nobody reads

    def _os_lock(fd: int) -> bool | None:
        os.lseek(fd, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _alive(pid: int) -> bool:
        return True  # never asked: msvcrt always tells who is right

else:
    import fcntl

    def _os_lock(fd: int) -> bool | None:
        """True: locked. False: somebody else has it. None: this file system has no locks."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return None
            raise
        return True

    def _alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def lock_path(file: RemoteFile, models_dir: Path) -> Path:
    """The lock file of a remote file, all parts of a split one together."""
    first = file.parts[0].local(models_dir)
    return first.with_name(first.name + ".lock")


class FileLock:
    """An exclusive lock with an owner; not re-entrant."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def try_acquire(self) -> Owner | None:
        """Take the lock: None when it is ours now, else who has it.

        Raises:
            OSError: the lock file cannot be made.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        locked = _os_lock(fd)
        owner = _read(fd)
        if locked is False or (owner and _holds(owner, fd, locked=locked is True)):
            if owner is None:  # it has the lock and is about to write its name
                time.sleep(SETTLE_S)
                owner = _read(fd) or Owner(0, "", time.time())
            os.close(fd)
            return owner
        if not self._is_current(fd):  # released, and so unlinked, between open and lock
            os.close(fd)
            return self.try_acquire()
        mine = Owner(os.getpid(), socket.gethostname(), time.time())
        _write(fd, mine)
        if locked is None:
            time.sleep(SETTLE_S)  # without a lock the last one to write its name wins
            if (winner := _read(fd)) != mine:
                os.close(fd)
                return winner
        self._fd = fd
        return None

    def beat(self) -> None:
        """Show other machines that the owner lives."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # the folder was removed meanwhile: the next write will tell
                os.utime(self._path)

    def release(self) -> None:
        """Give the lock back; idempotent."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):  # Windows refuses while another process looks at the file
            self._path.unlink()
        os.close(self._fd)
        self._fd = None

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False


def _read(fd: int) -> Owner | None:
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        return Owner(**json.loads(os.read(fd, 4096)))
    except (ValueError, TypeError):
        return None


def _write(fd: int, owner: Owner) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, json.dumps(asdict(owner)).encode())


def _holds(owner: Owner, fd: int, *, locked: bool) -> bool:
    """Whether an owner named in a lock file that we could open, and maybe lock, still holds it."""
    if owner.host == socket.gethostname():
        return not locked and _alive(owner.pid)
    return time.time() - os.fstat(fd).st_mtime < STALE_S
