"""``keras-mp lab``: the lab on its own, with the dashboard's themes, help and pictures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from textual.screen import Screen

from keras_mp.telemetry.records import Numerics
from tui.app import MonitorApp
from tui.keys import EVERYWHERE
from tui.lab.screen import LabScreen


class LabApp(MonitorApp):
    """The dashboard without any jobs, showing the lab.

    Args:
        job, numerics: As for ``LabScreen``. page: Title of the page to begin with.
        charset, settings: As for ``MonitorApp``.
    """

    TITLE = "keras-mp lab"
    INSTEAD = ""  # where the terminal is too small, nothing else shows the lab
    # For the help: there are no jobs here, whose devices there were to show.
    KEYS = tuple(  # type: ignore[assignment]  # fewer than the dashboard has
        replace(key, text="Leave.") if key.action == "app.quit" else key
        for key in EVERYWHERE
        if key.action not in ("app.devices", "app.lab")
    )

    def __init__(
        self,
        job: str = "",
        numerics: Sequence[Numerics] = (),
        *,
        page: str = "Bits",
        charset: str | None = None,
        settings: Path | None = None,
    ):
        super().__init__([], charset=charset, live=False, settings=settings)
        self._lab = (job, numerics, page)

    def get_default_screen(self) -> Screen[None]:
        return LabScreen(*self._lab)
