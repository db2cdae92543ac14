"""Everything a chat is started with; made once by the caller and handed down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.config import Config
from localspec.engine.settings import LoadSettings, SamplingSettings, SpeculationSettings
from localspec.interfaces import SessionInfo
from localspec.store import ChatStore
from localspec.tui.conversation import ChatSettings

if TYPE_CHECKING:
    from textual.screen import Screen

    from localspec.tui.controller import MakeSession
    from localspec.tui.picking.services import Picked

OpenPicker = Callable[[LoadSettings, SessionInfo | None], "Screen[Picked | None]"]
"""Makes the screen that F2 shows, from the settings of the next load and the pair that is loaded."""


@dataclass(frozen=True, slots=True)
class ChatSetup:
    """What a chat needs from outside."""

    make_session: MakeSession
    config: Config
    store: ChatStore
    log: Path
    initial_prompt: str | None = None
    resume: int | None = None
    """Id of a stored chat."""
    pick_first: bool = False
    """No pair is known yet: begin with the picker instead of a load."""
    system: str = ""
    picker: OpenPicker | None = None
    """What F2 shows."""
    clock: Callable[[], float] = time.monotonic

    @property
    def chat_settings(self) -> ChatSettings:
        """The configured defaults of a new chat."""
        return ChatSettings(
            SamplingSettings(**self.config.sampling),
            SpeculationSettings(**self.config.speculation),
            self.config.request.get("max_tokens"),
        )

    @property
    def load_settings(self) -> LoadSettings:
        return LoadSettings(**self.config.load)
