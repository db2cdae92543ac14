"""Everything a chat is started with; made once by the caller and handed down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.config import Config
from localspec.engine.settings import LoadSettings, SamplingSettings, SpeculationSettings
from localspec.store import ChatStore
from localspec.tui.conversation import ChatSettings

if TYPE_CHECKING:
    from textual.screen import Screen

    from localspec.tui.controller import MakeSession

PICKER = "picker"
"""Name under which F2 looks for the model picker. It must end with the name of a pair, or None."""


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
    screens: Mapping[str, Callable[[], Screen[str | None]]] = field(default_factory=dict)
    """Screens of other parts of the program by name; `PICKER` is asked for."""
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
