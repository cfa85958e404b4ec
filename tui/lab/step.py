"""Step: one training step slowed down, and what goes wrong without each of the three techniques."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from keras_mp.telemetry.format import count, power_of_two, share
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.lab.numbers import full, short, signed
from tui.lab.page import Page, press, text, turn
from tui.lab.training_step import OUTPUTS, SAMPLES, WEIGHT, Setting, StepResult, take
from tui.look import Look

FORMATS = ("float16", "bfloat16", "float8_e5m2")
LAST = 9
TECHNIQUES = {
    "masters": "float32 masters",
    "scaling": "loss scaling",
    "float32_sums": "float32 sums",
}
# A move that is off by less than this serves as well as the exact one.
CLOSE = 0.05


class StepPage(Page):
    TITLE: ClassVar[str] = "Step"
    KEYS: ClassVar[tuple[Key, ...]] = (
        press("space", "space", "next stage", "The next stage; after the last, the next step.", 1),
        press("backspace", "⌫", "", "The stage before."),
        press("m", "m l s", "without", "Leave out float32 masters, loss scaling, float32 sums.", 1),
        press("l", "", "", ""),
        press("s", "", "", ""),
        press("left", "← →", "scale", "A smaller or larger loss scale.", 1),
        press("right", "", "", ""),
        press("up,k", "↑↓", "rate", "A larger or smaller learning rate.", 3),
        press("down,j", "", "", ""),
        press("f", "f", "format", "float16, bfloat16, float8_e5m2.", 2),
        press("0", "0", "begin again", "The first step with all three techniques.", 4),
    )

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.setting = Setting()
        self.weight = WEIGHT
        self.stage = LAST
        self.steps = 1

    def press(self, key: str) -> None:
        setting = self.setting
        match key:
            case "space":
                if self.stage < LAST:
                    self.stage += 1
                else:
                    self.weight = take(self.weight, setting).new
                    self.steps, self.stage = self.steps + 1, 1
            case "backspace":
                self.stage = max(1, self.stage - 1)
            case "m":
                self.setting = replace(setting, masters=not setting.masters)
            case "l":
                self.setting = replace(setting, scaling=not setting.scaling)
            case "s":
                self.setting = replace(setting, float32_sums=not setting.float32_sums)
            case "left" | "right":
                factor = 2.0 if key == "right" else 0.5
                self.setting = replace(setting, scale=min(max(setting.scale * factor, 1), 2.0**60))
            case "up" | "down":
                factor = 10.0 if key == "up" else 0.1
                rate = float(f"{setting.rate * factor:.0e}")
                self.setting = replace(setting, rate=min(max(rate, 1e-6), 1e6))
            case "f":
                self.setting = replace(setting, format=turn(FORMATS, setting.format))
            case "0":
                self._begin()

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        setting, r = self.setting, take(self.weight, self.setting)
        rows: list[Row] = [
            text(
                (f"step {self.steps}", "strong"),
                (f": scale {power_of_two(setting.scale)}, ", "muted"),
                (f"rate {setting.rate:g}, {SAMPLES:,} samples, {OUTPUTS:,} outputs", "muted"),
            ),
            text(
                (f"in {setting.format}   ", "muted"),
                *self._switch("masters"),
                *self._switch("scaling"),
                *self._switch("float32_sums"),
            ),
            [],
        ]
        stages = self._stages(r)
        for number in range(1, LAST + 1):
            name, value, note, role = stages[number - 1]
            now = number == self.stage
            if number > self.stage:
                rows.append(text((f"  {number} {name}", "faint")))
                continue
            mark = ("▸" if look.unicode else ">") if now else " "
            rows.append(
                text(
                    (f"{mark} {number} {fit(name, 16)}", "strong" if now else "text"),
                    (fit(value, 16, right=True), role),
                    (f"   {note}", "muted"),
                )
            )
        rows += [[], self._verdict(r) if self.stage == LAST else [], []]
        return [*rows, *self._comparison()]

    def _switch(self, name: str) -> list[tuple[str, Role]]:
        on = getattr(self.setting, name)
        word = TECHNIQUES[name]
        return [
            (f"{word} ", "text" if on else "faint"),
            ("on   " if on else "OFF   ", "good" if on else "bad"),
        ]

    def _stages(self, r: StepResult) -> list[tuple[str, str, str, Role]]:
        s = self.setting
        store = "float32" if s.masters else s.format
        scale = s.used_scale
        lost = f"{share(r.zeros)} became zero"
        wrong: Role = "bad"
        sum_note = f"exactly {short(r.sum_exact, 6)}"
        sum_off = abs(r.summed - r.sum_exact) > CLOSE * abs(r.sum_exact)
        unscale = f"÷ {power_of_two(scale)}, in float32" if s.scaling else "nothing to divide by"
        if not r.finite:
            check, check_role = "overflow", wrong
            check_note = "the step is skipped, and a dynamic scale halved"
        else:
            check, check_role, check_note = "finite", "good", "the step is taken"
        return [
            ("weight", full(r.stored, 9), f"as stored, in {store}", "text"),
            ("cast", full(r.cast, 9), f"in {s.format}", "text"),
            (
                "product",
                full(r.output, 9),
                f"× input {full(r.x, 4)}; the target is {full(r.target, 4)}",
                "text",
            ),
            ("loss × scale", short(r.loss * scale, 5), self._scale_note(r), "text"),
            (
                "back: an output",
                short(r.delta, 5),
                f"exactly {short(r.delta_exact, 4)}; {lost}",
                "text" if r.delta != 0 or r.delta_exact == 0 else wrong,
            ),
            (
                "back: the weight",
                short(r.summed, 6),
                f"{sum_note}; summed in {'float32' if s.float32_sums else s.format}",
                wrong if sum_off else "text",
            ),
            ("unscale", short(r.unscaled, 5), unscale, "text"),
            ("check", check, check_note, check_role),
            (
                "update",
                full(r.new, 9),
                f"− {s.rate:g} × the gradient, in {store}"
                if r.finite
                else "the weight stays as it was",
                "text",
            ),
        ]

    def _scale_note(self, r: StepResult) -> str:
        if not self.setting.scaling:
            return f"loss {short(r.loss, 4)}, not scaled"
        return f"loss {short(r.loss, 4)} × {power_of_two(self.setting.scale)}"

    def _verdict(self, r: StepResult) -> Row:
        name, role = judge(r)
        return text(
            ("  moved by ", "muted"),
            (signed(r.moved), role),
            (f", exactly {signed(r.exact_move)}: ", "muted"),
            (name, role),
        )

    def _comparison(self) -> list[Row]:
        """The same step with each technique left out alone."""
        whole = replace(self.setting, masters=True, scaling=True, float32_sums=True)
        rows: list[Row] = [text(("  the same step", "muted"), (" " * 14 + "moves by", "muted"))]
        cases = {
            "with all three": whole,
            "without float32 masters": replace(whole, masters=False),
            "without loss scaling": replace(whole, scaling=False),
            "without float32 sums": replace(whole, float32_sums=False),
        }
        for name, setting in cases.items():
            r = take(self.weight, setting)
            word, role = judge(r)
            rows.append(
                text(
                    f"  {fit(name, 24)}",
                    (fit(signed(r.moved), 13, right=True), role),
                    (f"   {word}", "muted" if role == "good" else "text"),
                )
            )
        return rows


def judge(r: StepResult) -> tuple[str, Role]:
    """What became of a step, in words."""
    if not r.finite:
        return "overflow: skipped", "bad"
    if r.moved == 0:
        if r.summed == 0:
            return f"{share(r.zeros)} of the gradients became zero", "bad"
        ratio = abs(r.stored / r.update)
        written = f"{ratio:,.0f}" if ratio < 1e7 else count(ratio)
        return f"swallowed: {written} times smaller", "bad"
    if r.error <= CLOSE:
        return f"right within {share(r.error)}", "good"
    smaller = abs(r.moved) < abs(r.exact_move)
    return f"{share(r.error)} too {'small' if smaller else 'large'}", "warn"
