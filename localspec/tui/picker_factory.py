"""Makes picker screens that share one download thread: downloads go on while no picker is open."""

from __future__ import annotations

from localspec.catalog import Catalog
from localspec.config import Config
from localspec.engine.settings import LoadSettings
from localspec.interfaces import PairFiles, SessionInfo
from localspec.locations import locations
from localspec.planning import own_memory, remember_load, remember_rates
from localspec.planning.scan import extra_dirs
from localspec.planning.speeds import Rates
from localspec.store.measurements import Measurements
from localspec.tui.picking.downloads import Downloads
from localspec.tui.picking.question import Question
from localspec.tui.picking.services import Services
from localspec.tui.screens.picker import PickerScreen


class PickerFactory:
    """What outlives a picker screen; to be closed."""

    def __init__(self, catalog: Catalog, config: Config, *, budget: str | None = None) -> None:
        """Raises:
        LocalspecError: the measurements were written by a newer version.
        """
        self._measurements = Measurements(locations().measurements_db)
        self._services = Services(catalog, config, measurements=self._measurements)
        self._budget = budget
        self._remembered: SessionInfo | None = None
        self.downloads = Downloads(config.models_dir, self._services.size_of, extra_dirs=extra_dirs())

    def screen(self, load: LoadSettings, info: SessionInfo | None = None, *, in_chat: bool) -> PickerScreen:
        """A picker that begins with these settings.

        Args:
            info: the loaded pair, whose memory the next one would get.
            in_chat: a pick loads the pair.
        """
        self._services.own = own_memory(info) if info else {}
        first = self._services.default is None and info is None
        question = Question(self._budget, load)
        return PickerScreen(self._services, self.downloads, question, in_chat=in_chat, first=first)

    def remember(self, files: PairFiles, info: SessionInfo) -> None:
        """Keep what a load took: the next plan of the same pair says `measured`. Once per loaded pair.

        Raises:
            LocalspecError: the database cannot be written.
        """
        if info is not self._remembered:
            self._remembered = info
            remember_load(files, info, self._measurements)

    def keep_rates(self, files: PairFiles, info: SessionInfo, rates: Rates) -> None:
        """Keep how fast a reply was.

        Raises:
            LocalspecError: the database cannot be written.
        """
        remember_rates(files, info, rates, self._measurements)

    def close(self) -> None:
        """Stop downloading; the queue and what was fetched stay."""
        self.downloads.close()
        self._measurements.close()
