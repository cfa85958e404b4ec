"""Which columns of a table fit into a width, and how wide each is."""

from collections.abc import Sequence
from dataclasses import dataclass

from tui.drawing.roles import Piece, Row
from tui.drawing.text import fit, shorten

# From this rank on a column is shown only where there is room to spare.
SPARE = 10


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name in the program. title: Its name on the screen.
        width: Cells it takes. short: Fewer cells, for a narrow terminal; the row is then asked for
            shorter text (and has ``short_title``). 0: it has no shorter form.
        right: Numbers are aligned to the right, with their title.
        rank: The higher, the earlier the column leaves when there is no room; 0 never leaves.
        stretch: Takes up to this many cells more when there is room.
        tight: The next column follows without a gap.
        middle: Of what is too long the middle is cut, not the end.
    """

    key: str
    title: str
    width: int
    short: int = 0
    right: bool = False
    rank: int = 0
    stretch: int = 0
    short_title: str = ""
    tight: bool = False
    middle: bool = False


@dataclass(frozen=True)
class Placed:
    """A column with the width it got; ``short`` where its short form is shown."""

    column: Column
    width: int
    short: bool


@dataclass(frozen=True)
class Layout:
    places: tuple[Placed, ...]
    gap: int

    def row(self, cells: Sequence[Piece]) -> Row:
        """The cells (text, role) in their columns."""
        out: Row = []
        lead = ""
        for place, (text, role) in zip(self.places, cells, strict=True):
            text = shorten(text, place.width) if place.column.middle else text
            out.append((lead + fit(text, place.width, place.column.right), role))
            lead = "" if place.column.tight else " " * self.gap
        return out

    def column_at(self, x: int) -> Column | None:
        """The column under a cell position, gaps counting to the column on their left."""
        edge = 0
        for place in self.places:
            edge += place.width + (0 if place.column.tight else self.gap)
            if x < edge:
                return place.column
        return None


def lay_out(columns: Sequence[Column], width: int) -> Layout:
    """Which columns fit, and how wide each is.

    Columns of rank 10 and more are shown only where nothing else gives way for them, and half of
    what the others may stretch is left to those. Then, in this
    order until the rest fits: a gap of 2, of 1, the short forms, and the columns of the highest
    rank one by one. What room is left goes to columns that stretch, and to the gaps.
    """
    kept = list(columns)
    while True:
        spare = [c for c in kept if c.rank >= SPARE]
        wished = sum(c.width + (c.stretch // 2 if c.rank < SPARE else 0) for c in kept)
        if wished + 2 * _gaps(kept) <= width or not spare:
            break
        kept.remove(max(spare, key=lambda c: c.rank))
    while True:
        for gap, short in ((2, False), (1, False), (2, True), (1, True)):
            widths = [c.short if short and c.short else c.width for c in kept]
            if sum(widths) + gap * _gaps(kept) <= width:
                return _spread(kept, widths, gap, short, width)
        last = max(kept, key=lambda c: c.rank)
        if last.rank == 0 or len(kept) == 1:
            return _spread(kept, widths, gap, True, width)
        kept.remove(last)


def _gaps(columns: Sequence[Column]) -> int:
    return sum(not c.tight for c in columns[:-1])


def _spread(
    columns: Sequence[Column], widths: list[int], gap: int, short: bool, width: int
) -> Layout:
    room = width - sum(widths) - gap * _gaps(columns)
    for index, column in enumerate(columns):
        extra = max(0, min(column.stretch, room))
        widths[index] += extra
        room -= extra
    if _gaps(columns):
        gap += max(0, min(room // _gaps(columns), 2))
    places = (Placed(c, w, short and bool(c.short)) for c, w in zip(columns, widths, strict=True))
    return Layout(tuple(places), gap)
