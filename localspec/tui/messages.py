"""What the controller tells the chat screen. Several may be posted from other threads."""

from __future__ import annotations

from textual.message import Message

from localspec.engine.events import Loading, Notice
from localspec.errors import LocalspecError
from localspec.interfaces import SessionInfo


class LoadProgress(Message):
    """A model is being read; a newer one replaces it."""

    def __init__(self, event: Loading) -> None:
        super().__init__()
        self.event = event

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, LoadProgress)


class LoadNotice(Message):
    """Something about the load that the user should know."""

    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice


class Loaded(Message):
    """The model is ready."""

    def __init__(self, info: SessionInfo) -> None:
        super().__init__()
        self.info = info


class LoadFailed(Message):
    """The model could not be loaded, or the load was stopped."""

    def __init__(self, error: LocalspecError, *, stopped: bool) -> None:
        super().__init__()
        self.error = error
        self.stopped = stopped


class EventsArrived(Message):
    """There is something in the controller's inbox; it says nothing about what."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, EventsArrived)


class ReplyRefused(Message):
    """The session did not start the reply."""

    def __init__(self, error: LocalspecError) -> None:
        super().__init__()
        self.error = error
