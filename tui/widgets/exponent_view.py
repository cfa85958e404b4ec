"""One tensor's exponents under a scale, and in words what a format makes of them."""

from collections.abc import Sequence

from keras_mp.numerics.formats import FORMATS
from keras_mp.telemetry.format import count, number, power_of_two, share, whole
from tui.drawing.exponents import draw
from tui.drawing.roles import Role, Row
from tui.look import Look
from tui.numerics import Tensor
from tui.widgets.heat_table import lost_role, room_text
from tui.widgets.lines import Lines

KIND = {"activation": "activation", "gradient": "gradient", "weight_gradient": "weight gradient"}


class ExponentView(Lines):
    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._tensor: Tensor | None = None
        self._format, self._look = "float16", Look()
        self._scale: float | None = None

    def show(self, tensor: Tensor | None, fmt: str, scale: float | None, look: Look) -> None:
        self._tensor, self._format, self._scale, self._look = tensor, fmt, scale, look
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        tensor = self._tensor
        if tensor is None:
            return []
        row, say = tensor.row, self._look.say
        activation = row.tensor == "activation"
        scale = row.scale if self._scale is None or activation else self._scale
        fmt = FORMATS[self._format]
        out: list[Row] = [self._title(tensor), self._words(tensor, scale, width)]
        pictures = draw(row.histogram, fmt, scale, width, height - 2, self._look.unicode)
        return [*out, *([(say(text), role) for text, role in line] for line in pictures)]

    def _title(self, tensor: Tensor) -> Row:
        row, record, say = tensor.row, tensor.record, self._look.say
        facts = [
            KIND[row.tensor],
            f"step {whole(record.step)}",
            f"{count(row.histogram.total)} values",
        ]
        if row.histogram.largest:
            facts.append(f"largest {number(row.histogram.largest, 3)}")
        if row.norm is not None:
            facts.append(f"norm {number(row.norm, 3)}")
        if row.histogram.zeros:
            facts.append(f"{share(row.histogram.zeros / row.histogram.total)} zero")
        return [(say(row.name), "strong"), (say("  " + " · ".join(facts)), "muted")]

    def _words(self, tensor: Tensor, scale: float, width: int) -> Row:
        row, say, narrow = tensor.row, self._look.say, width < 100
        told = row.shares(self._format, scale)
        where = self._format
        if row.tensor != "activation":
            own = " (its own)" if scale == row.scale and not narrow else ""
            where += f" at {power_of_two(scale)}{own}"
        lost = told.lost_of_nonzero
        room, role = room_text(tensor, self._format, scale)
        parts: list[tuple[str, Role]] = [
            (f"lost {share(lost)}", lost_role(lost)),
            (f"subnormal {share(told.subnormal)}", "text"),
            (f"overflow {share(told.overflow)}", "bad" if told.overflow else "text"),
            (f"room {room}" if narrow else f"room {room} doublings", role),
        ]
        if not narrow:
            parts.append((f"normal {share(told.normal + told.near)}", "muted"))
        if told.nan:
            parts.insert(0, (f"NaN {share(told.nan)}", "bad"))
        out: Row = [(say(where), "text")]
        for text, tone in parts:
            out += [(say(" · "), "muted"), (say(text), tone)]
        return out
