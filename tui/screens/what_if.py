"""What another setting of the loss scale would have made of a run: moved by keys, told at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.worker import get_current_worker

from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry.format import goal, power_of_two, share, whole
from keras_mp.telemetry.history import History, history_of
from keras_mp.telemetry.replay import Outcome, what_if
from tui.drawing.chart import Chart, Series
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit, shorten, wrap
from tui.keys import EVERYWHERE, WHAT_IF, bindings, hints
from tui.look import Look
from tui.recording import Recording
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.what_if import FIELDS, OWN, moved, rows, settings
from tui.widgets.chart_view import ChartView
from tui.widgets.key_bar import KeyBar
from tui.widgets.said import Said


class WhatIfScreen(ShownScreen):
    """Tries settings on the run ``job``. Its journal is read, and replayed, in a thread."""

    KEYS = WHAT_IF
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(WHAT_IF)]

    @dataclass
    class Read(Message):
        history: History

    @dataclass
    class Tried(Message):
        outcome: Outcome

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, WhatIfScreen.Tried)

    def __init__(self, place: str, job: JobView):
        super().__init__(place)
        self.run = job
        self.history: History | None = None
        self.outcome: Outcome | None = None
        self.setting = ""
        self.config: ScaleConfig | None = None
        self.field = 0
        self._problem = ""
        self._words = Said(id="verdict")
        self._settings = Said(id="settings")
        self._chart = ChartView(id="chart0", classes="chart")
        self._footer = KeyBar(hints((*WHAT_IF, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._words
        yield Horizontal(self._settings, self._chart, id="beside")
        yield self._footer

    @property
    def in_view(self) -> frozenset[str] | None:
        return frozenset([self.run.key])

    def on_mount(self) -> None:
        self.show()
        self._read()

    def on_resize(self) -> None:
        self.show()

    # The threads.

    @work(thread=True, group="read", exit_on_error=False)
    def _read(self) -> None:
        try:
            recording = Recording(Path(self.run.folder))
            history = history_of(recording.of_lead(), recording.meta)
        except OSError as error:
            self.app.call_from_thread(self._cannot, f"Its journal cannot be read: {error.strerror}")
        except ValueError as error:
            self.app.call_from_thread(self._cannot, str(error))
        else:
            self.post_message(self.Read(history))

    @work(thread=True, group="try", exclusive=True, exit_on_error=False)
    def _try(self, history: History, config: ScaleConfig) -> None:
        outcome = what_if(history, config)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Tried(outcome))

    # What they post.

    def on_what_if_screen_read(self, message: Read) -> None:
        self.history = message.history
        self.setting, self.config = next(iter(settings(self.history.config).items()))
        self._again()

    def on_what_if_screen_tried(self, message: Tried) -> None:
        self.outcome = message.outcome
        self.show()

    def _cannot(self, why: str) -> None:
        self._problem = why
        self.show()

    def _again(self) -> None:
        if self.history is not None and self.config is not None:
            self._try(self.history, self.config)
            self.show()

    # What is shown.

    def show(self) -> None:
        self.tick()
        look = self.monitor.look
        self._words.say(self._said(max(20, self.size.width - 2)), look)
        self._settings.say(self._fields(), look)
        self._chart.show(self._drawn(look), look.charset)

    def _said(self, width: int) -> list[Row]:
        name = self.monitor.look.say(self.run.name)
        if self._problem:
            return _wrapped(self._problem, width, "warn", [(shorten(name, width), "strong")])
        if self.outcome is None or self.history is None:
            name = shorten(name, width // 2)
            return [[(name, "strong"), (" · reading the journal …", "muted")]]
        outcome = self.outcome
        asked = f" · what if the loss scale had been {self.setting}?"
        row: Row = [(shorten(name, max(10, width - len(asked))), "strong"), (asked, "text")]
        role: Role = "warn" if outcome.wasted > outcome.recorded else "good"
        notes = "; ".join(self.history.notes)
        told = _wrapped(outcome.sentence, width, role, row)[:3]
        return [*told, [(fit(notes or _footing(outcome), width), "muted")]]

    def _fields(self) -> list[Row]:
        config, history = self.config, self.history
        if config is None or history is None:
            return []
        out: list[Row] = [[("setting  ", "muted"), (self.setting, "strong")], []]
        for number, (field, value) in enumerate(rows(config)):
            here = number == self.field
            own = field.text(history.config) if history.config is not None else None
            differs = own is not None and own != field.text(config)
            row: Row = [("▸ " if here else "  ", "text"), (fit(field.title, 21), "muted")]
            row.append((value, "strong" if here else "text"))
            if differs:
                row.append((f"  own {own}", "muted"))
            out.append(row)
        if self.outcome is not None:
            out += [[], *_figures(self.outcome)]
        return out

    def _drawn(self, look: Look) -> Chart | None:
        outcome, history = self.outcome, self.history
        if outcome is None or history is None:
            return None
        steps = np.array([s for s, _ in outcome.scales], dtype=np.float64)
        scales = np.array([v for _, v in outcome.scales], dtype=np.float64)
        first, last = history.first_step, history.first_step + history.steps - 1
        if len(steps) and steps[-1] < last:
            steps, scales = np.append(steps, last), np.append(scales, scales[-1])
        own = np.arange(history.steps, dtype=np.float64) + first
        return Chart(
            title="scale",
            note=look.say("as it was, quiet; as it would have been"),
            series=[
                Series(own, history.scales, hold=True, role="muted"),
                Series(steps, scales, hold=True, role="line"),
            ],
            kind="log2",
            label=look.label(power_of_two),
            ticks=np.array(outcome.overflows, dtype=np.float64),
            span=(float(first), float(max(last, first + 1))),
            x_label=look.label(lambda step: goal(round(step))),
        )

    # The keys.

    def action_field(self, by: int) -> None:
        self.field = (self.field + by) % len(FIELDS)
        self.show()

    def action_change(self, by: int) -> None:
        if self.config is None:
            return
        changed = moved(self.config, FIELDS[self.field], by)
        if changed != self.config:
            self.config = changed
            self.setting = self.setting.removesuffix(", changed") + ", changed"
            self._again()

    def action_preset(self, by: int) -> None:
        if self.history is None:
            return
        known = settings(self.history.config)
        names = list(known)
        name = self.setting.removesuffix(", changed")
        self.setting = names[(names.index(name) + by) % len(names)]
        self.config = known[self.setting]
        self._again()

    def action_own(self) -> None:
        known = settings(self.history.config) if self.history is not None else {}
        if OWN in known:
            self.setting, self.config = OWN, known[OWN]
            self._again()

    def action_back(self) -> None:
        self.monitor.back_to_jobs(self.run.key)


def _wrapped(text: str, width: int, role: Role, first: Row) -> list[Row]:
    rows: list[Row] = [[(line, role)] for line in wrap(text, width)]
    return [first, *rows]


def _footing(outcome: Outcome) -> str:
    """What the answer rests on."""
    if outcome.estimated or outcome.unknown:
        return (
            f"{whole(outcome.estimated)} steps at scales above the run's own are estimated, "
            f"{whole(outcome.unknown)} taken for clean"
        )
    return "every step of it was seen at that scale: no estimate in it"


def _figures(outcome: Outcome) -> list[Row]:
    pairs = (
        ("skipped", f"{whole(outcome.wasted)} ({share(outcome.share)})"),
        ("at least, at most", f"{whole(outcome.least)}, {whole(outcome.most)}"),
        ("by the run itself", whole(outcome.recorded)),
        ("scale at the end", power_of_two(outcome.final_scale)),
    )
    return [[("  ", "text"), (fit(title, 21), "muted"), (value, "text")] for title, value in pairs]
