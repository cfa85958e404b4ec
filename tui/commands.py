"""The command palette: everything that a key does, by name, and the themes and charsets."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tui.drawing.raster import CHARSETS
from tui.screens.base import ShownScreen

if TYPE_CHECKING:
    from tui.app import MonitorApp

Command = tuple[str, str, Any]


class MonitorCommands(Provider):
    @property
    def _monitor(self) -> "MonitorApp":
        return cast("MonitorApp", self.app)

    def _commands(self) -> Iterator[Command]:
        """(name, key, what to call)."""
        screen = self.screen
        keys = (*(screen.KEYS if isinstance(screen, ShownScreen) else ()), *self._monitor.KEYS)
        for key in keys:
            if key.action and key.text and key.action != "app.command_palette":
                run = partial(self.app.run_action, key.action, screen)
                yield key.text.rstrip("."), key.shown, run
        for theme in sorted(self.app.available_themes):
            yield f"Theme: {theme}", "", partial(setattr, self.app, "theme", theme)
        for charset in CHARSETS:
            yield f"Charts in {charset}", "", partial(self._monitor.use_charset, charset)

    async def discover(self) -> Hits:
        for name, key, run in self._commands():
            yield DiscoveryHit(name, run, help=key or None)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, key, run in self._commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=key or None)
