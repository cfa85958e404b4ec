"""Layers by time: a heat strip for each, with the newest figures beside it."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len

from keras_mp.telemetry.format import UNKNOWN, share
from tui.drawing.chart import padded
from tui.drawing.heat import HEADROOM, LOST, strip
from tui.drawing.roles import Piece, Role, Row
from tui.drawing.text import fit
from tui.look import Look
from tui.numerics import Shown, Tensor
from tui.widgets.columns import Column, Layout
from tui.widgets.line_table import LineTable

STRIP = "strip"
NAMES = (10, 32)  # cells, at least and at most
FIGURES = (
    Column(STRIP, "", 20, stretch=400),
    Column("lost", "lost", 7, right=True),
    Column("subnormal", "subnormal", 9, right=True, rank=2),
    Column("underflow", "measured", 8, right=True, rank=3),
    Column("room", "room", 6, right=True),
)


def columns(names: Sequence[str]) -> list[Column]:
    """The strip gets the room that the longest name leaves."""
    longest = max(map(cell_len, names), default=0)
    return [Column("name", "layer", min(max(longest, NAMES[0]), NAMES[1])), *FIGURES]


class HeatTable(LineTable):
    """``put`` gives it the tensors; the strip shows what ``shown`` says, of the recorded scale."""

    def __init__(self, *, id: str | None = None):
        super().__init__(columns(()), id=id)
        self._tensors: Sequence[Tensor] = ()
        self._span: tuple[float, float] | None = None
        self._format = "float16"
        self._scale: float | None = None
        self._shown: Shown = "lost"
        self._look = Look()

    def put(
        self,
        tensors: Sequence[Tensor],
        span: tuple[float, float] | None,
        fmt: str,
        scale: float | None,
        shown: Shown,
        look: Look,
    ) -> None:
        self._tensors, self._span, self._look = tensors, span, look
        self._format, self._scale, self._shown = fmt, scale, shown
        self.use_columns(columns([look.say(tensor.name) for tensor in tensors]))
        self.show([tensor.name for tensor in tensors], self._no_cells)

    def _no_cells(self, index: int, plan: Layout) -> list[Piece]:
        return []  # a strip is more than one piece: rows are made whole, below

    def _row(self, y: int) -> Row:
        tensor = self._tensors[y]
        row: Row = []
        lead = ""
        for place in self.plan.places:
            if place.column.key == STRIP:
                row += [(lead, "text"), *self._strip(tensor, place.width)]
            else:
                text, role = self._cell(tensor, place.column.key)
                row.append((lead + fit(text, place.width, place.column.right), role))
            lead = " " * self.plan.gap
        return padded(row, self.width)

    def _strip(self, tensor: Tensor, width: int) -> Row:
        if self._span is None or not tensor.shares:
            return [(" " * width, "text")]
        shares = tensor.shares
        levels = LOST if self._shown == "lost" else HEADROOM
        bad = shares["overflow"] if self._shown == "lost" else None
        values = shares[self._shown]
        return strip(shares["step"], values, self._span, width, levels, bad, self._look.unicode)

    def _cell(self, tensor: Tensor, key: str) -> Piece:
        if key == "name":
            return self._look.say(tensor.name), "text"
        if key == "underflow":
            value = tensor.row.underflow
            return (share(value), "text") if value is not None else (UNKNOWN, "muted")
        if key == "room":
            return room_text(tensor, self._format, self._scale)
        told = tensor.row.shares(self._format, self._scale)
        if key == "subnormal":
            return share(told.subnormal), "text"
        return share(told.lost_of_nonzero), lost_role(told.lost_of_nonzero)


def lost_role(lost: float) -> Role:
    """As the strip's levels have it."""
    return ("muted", "text", "text", "warn", "bad")[int(LOST.of(np.array(lost)))]


def room_text(tensor: Tensor, fmt: str, scale: float | None) -> Piece:
    """Doublings until the largest value overflows."""
    room = tensor.row.headroom(fmt, scale)
    if room is None:
        return UNKNOWN, "muted"
    return f"{room:.1f}", ("text", "text", "text", "warn", "bad")[int(HEADROOM.of(np.array(room)))]
