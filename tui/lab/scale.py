"""Scale: where gradients lie under a scale, and how a dynamic scale finds its place."""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from keras_mp.numerics.formats import FORMATS
from keras_mp.numerics.histogram import headroom, shares
from keras_mp.scaling.presets import PRESETS
from keras_mp.telemetry.format import power_of_two, share, whole
from tui.drawing.chart import Chart, Series, draw
from tui.drawing.roles import Row
from tui.keys import Key
from tui.lab import histogram_view
from tui.lab.page import Page, press, text, turn
from tui.lab.recorded import Source, demo_gradients, overflows
from tui.lab.scaler import Scaler
from tui.look import Look

FORMAT_NAMES = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3")
SMALLEST, LARGEST = 2.0**-20, 2.0**40
QUICK_GROWTH = 100  # clean steps: so that a scale grows several times within the recording
PLOT = 7  # rows of the histogram's bars


class ScalePage(Page):
    """Two views: gradients under a scale moved by hand, and a dynamic scale on a recorded run.

    Args:
        sources: Histograms to show first: of a job's recorded numerics.
    """

    TITLE: ClassVar[str] = "Scale"
    HISTOGRAM: ClassVar[tuple[Key, ...]] = (
        press("left", "← →", "scale", "Halve or double the scale.", 1),
        press("right", "", "", ""),
        press("up,k", "↑↓", "tensor", "Another tensor.", 1),
        press("down,j", "", "", ""),
        press("d", "d", "dynamic scale", "How a dynamic scale finds its place, step by step.", 1),
        press("f", "f", "format", "float16, bfloat16, e5m2, e4m3.", 2),
        press("0", "0", "", "Scale 1."),
    )
    STEPS: ClassVar[tuple[Key, ...]] = (
        press("space", "space", "next change", "To the next step that is skipped or grows.", 1),
        press("left", "← →", "step", "One step back or on.", 1),
        press("right", "", "", ""),
        press("up,k", "↑↓", "preset", "The same under another system's preset.", 1),
        press("down,j", "", "", ""),
        press("e", "e", "end", "To the end of the recording.", 3),
        press("i", "i", "growth", "Grow after 100 clean steps, or as the preset does.", 4),
        press("d", "d", "histogram", "Back to the histogram.", 2),
        press("0", "0", "", "From the first step."),
    )
    KEYS: ClassVar[tuple[Key, ...]] = (*HISTOGRAM, *STEPS)

    def current_keys(self) -> tuple[Key, ...]:
        return self.STEPS if self.stepping else self.HISTOGRAM

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.sources = (*sources, *demo_gradients())
        self.source = self.sources[0]
        self.format = FORMATS["float16"]
        self.scale = 1.0
        self.stepping = False
        self.scaler = Scaler(overflows())

    def press(self, key: str) -> None:
        if key == "d":
            self.stepping = not self.stepping
        elif self.stepping:
            self._press_steps(key)
        else:
            self._press_histogram(key)

    def _press_histogram(self, key: str) -> None:
        match key:
            case "left" | "right":
                moved = self.scale * (2.0 if key == "right" else 0.5)
                self.scale = min(max(moved, SMALLEST), LARGEST)
            case "up" | "down":
                self.source = turn(self.sources, self.source, 1 if key == "down" else -1)
            case "f":
                self.format = FORMATS[turn(FORMAT_NAMES, self.format.name)]
            case "0":
                self.scale = 1.0

    def _press_steps(self, key: str) -> None:
        match key:
            case "right":
                self.scaler.step()
            case "space":
                self.scaler.go_to_change()
            case "e":
                self.scaler.go(len(self.scaler.recording.log2_limit))
            case "up" | "down":
                by = 1 if key == "down" else -1
                preset = turn(list(PRESETS), self.scaler.preset, by)
                self.scaler.restart(preset, self.scaler.interval)
            case "i":
                quick = self.scaler.interval is None
                self.scaler.restart(self.scaler.preset, QUICK_GROWTH if quick else None)
            case "left":
                self.scaler.back()
            case "0":
                self.scaler.restart(self.scaler.preset, self.scaler.interval)

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        return list(self._steps(width, look) if self.stepping else self._histogram(width, look))

    def _histogram(self, width: int, look: Look) -> Iterator[Row]:
        h, f = self.source.histogram, self.format
        found = shares(h, f, self.scale)
        yield text(
            (self.source.title, "strong"), (f"   {self.source.where}, float32 pass", "muted")
        )
        yield text(
            ("times ", "muted"),
            (power_of_two(self.scale) if self.scale != 1 else "1: unscaled", "strong"),
            (f" in {f.name}", "muted"),
        )
        yield []
        yield from histogram_view.draw(h, f, self.scale, width - 8, PLOT, look)
        yield []
        yield from histogram_view.fates(found, width - 8, look)
        yield []
        yield from self._says()

    def _says(self) -> Iterator[Row]:
        h, f = self.source.histogram, self.format
        found = shares(h, f, self.scale)
        if found.overflow > 0:
            yield text(
                ("Too large: ", "bad"),
                f"{share(found.overflow)} overflow, and one is enough: such a step is skipped.",
            )
        elif found.lost_of_nonzero > 0:
            yield text(
                f"{share(found.lost_of_nonzero)} of what was not zero becomes zero: ",
                ("that part of the gradient is gone.", "muted"),
            )
        else:
            yield text(("Nothing is lost.", "good"))
        room = headroom(h.largest, f)
        if room is not None and math.isfinite(room):
            best = math.floor(room)
            yield text(
                ("The largest scale without overflow on this batch is ", "muted"),
                power_of_two(2.0**best),
                (f", where {share(shares(h, f, 2.0**best).lost_of_nonzero)} is lost.", "muted"),
            )

    def _steps(self, width: int, look: Look) -> Iterator[Row]:
        s = self.scaler
        config = s.config
        yield text(
            (f"preset {s.preset}", "strong"),
            (
                f"   from {power_of_two(config.initial_scale)}, doubles after "
                f"{whole(config.growth_interval)} clean steps"
                if config.dynamic
                else f"   stays at {power_of_two(config.initial_scale)}",
                "muted",
            ),
            (
                f", tolerates {config.hysteresis - 1}" if config.hysteresis > 1 else "",
                "muted",
            ),
        )
        yield text((f"recorded: {s.recording.what}", "muted"))
        yield []
        yield from draw(self._chart(look), width, 11, look.charset)
        yield []
        yield from self._state()

    def _chart(self, look: Look) -> Chart:
        s = self.scaler
        limits = 2.0 ** np.array(s.recording.log2_limit)
        steps = np.arange(1, len(limits) + 1, dtype=np.float64)
        used = np.array([2.0**t.scale for t in s.taken] + [s.state.scale])
        skips = np.array([n for n, t in enumerate(s.taken, start=1) if not t.finite], np.float64)
        return Chart(
            "loss scale",
            (
                Series(steps, limits, role="faint"),
                Series(np.arange(1, len(used) + 1, dtype=np.float64), used, hold=True, role="line"),
            ),
            look.label(power_of_two),
            kind="log2",
            note="under the grey line, above which this step's gradients overflow",
            ticks=skips,
            span=(1.0, float(len(limits))),
            x_label=lambda value: f"{value:,.0f}",
        )

    def _state(self) -> Iterator[Row]:
        s, state = self.scaler, self.scaler.state
        if not s.taken:
            yield text(("space goes to the first thing that happens.", "muted"))
            return
        last, number = s.taken[-1], len(s.taken)
        before, after = power_of_two(2.0**last.scale), power_of_two(2.0**last.after)
        if not last.finite:
            limit = power_of_two(2.0 ** math.floor(s.recording.log2_limit[number - 1]))
            fall = f"halved to {after}" if last.after < last.scale else "kept: tolerated"
            if not s.config.dynamic:
                fall = "kept: it is static"
            yield text(
                f"step {number:,}: ",
                ("overflow", "bad"),
                f" at {before} ({limit} would do): skipped, the scale is {fall}",
            )
        elif last.after > last.scale:
            yield text(f"step {number:,}: clean; the scale grows ", (f"{before} → {after}", "good"))
        else:
            yield text(f"step {number:,}: clean at {before}")
        left = max(0, s.config.growth_interval - state.good_steps)
        grow = f"grows in {whole(left)} clean steps" if s.config.dynamic else "never moves"
        yield text(
            ("skipped ", "muted"),
            f"{state.skipped:,}",
            (" of ", "muted"),
            f"{number:,}",
            (f" ({share(state.skipped / number)})   ", "muted"),
            grow,
        )
        if s.ended:
            yield text(("This preset ends the run here: its scale is exhausted.", "bad"))
        elif s.over:
            yield text(("The recording ends here. ↑↓: the same under another preset.", "muted"))
