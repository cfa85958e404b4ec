"""What a probe found, tensor by tensor. NumPy-only: the dashboard and the advice read it too."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from keras_mp.numerics.formats import Format, get_format
from keras_mp.numerics.histogram import Histogram, Shares, headroom, shares
from keras_mp.telemetry.records import Numerics

Kind = Literal["activation", "gradient", "weight_gradient"]
KINDS: tuple[Kind, ...] = ("activation", "gradient", "weight_gradient")


@dataclass(frozen=True)
class Row:
    """One tensor (several calls of a shared layer count together), measured in float32.

    Attributes:
        layer: Path of the layer, as in ``keras_mp.plan``; of a ``keras.ops`` function in a
            functional model its name; "(outputs)" for what the model itself computes at its end.
        tensor: Its output, the loss' gradient with respect to it, or a variable's gradient.
        variable: The variable's path, for a weight gradient.
        histogram: Of the unscaled values. norm: Their L2 norm.
        scale: What gradients are multiplied by before a format sees them; 1 for activations.
        underflow: Share that the model's own float16 pass made zero though float32 did not; None
            where the model does not compute in float16.
        dtype: What the layer computes in, such as "float32" for one kept out of float16; None where
            that is not known (a function between layers).
    """

    layer: str
    tensor: Kind
    histogram: Histogram
    variable: str | None = None
    norm: float | None = None
    scale: float = 1.0
    underflow: float | None = None
    dtype: str | None = None

    @property
    def name(self) -> str:
        return self.variable or self.layer

    def shares(self, fmt: "str | Format" = "float16", scale: float | None = None) -> Shares:
        """What a format makes of the values, at the row's scale or (gradients) another."""
        return shares(self.histogram, fmt, self._scale(scale))

    def headroom(self, fmt: "str | Format" = "float16", scale: float | None = None) -> float | None:
        """Doublings until the largest value overflows; None if all are zero."""
        return headroom(self.histogram.largest, fmt, self._scale(scale))

    def _scale(self, scale: float | None) -> float:
        return self.scale if scale is None or self.tensor == "activation" else scale

    def to_record(self, step: int, time: float, fmt: "str | Format" = "float16") -> Numerics:
        """As the journal holds it."""
        told, h = self.shares(fmt), self.histogram
        return Numerics(
            step=step,
            time=time,
            layer=self.layer,
            tensor=self.tensor,
            variable=self.variable,
            dtype=self.dtype,
            histogram={str(e): n for e, n in h.exponents.items()},
            values=h.total,
            zeros=h.zeros,
            infinities=h.infinities or None,
            nans=h.nans or None,
            format=get_format(fmt).name,
            scale=self.scale,
            zero=told.zero,
            lost=told.lost,
            subnormal=told.subnormal,
            normal=told.normal,
            near=told.near,
            overflow=told.overflow,
            underflow=self.underflow,
            largest=h.largest,
            norm=self.norm,
            headroom=self.headroom(fmt),
        )

    @classmethod
    def of_record(cls, record: Numerics) -> "Row":
        """The row that a record was made of."""
        exponents: dict[int, int] = {}
        for key, count in record.histogram.items():
            try:
                exponents[int(key)] = count
            except ValueError:
                continue
        zeros = record.zeros
        if zeros is None:  # an older record: the share and the others tell it
            seen = sum(exponents.values())
            share = min(record.zero or 0.0, 0.999999)
            zeros = round(seen * share / (1.0 - share)) if seen else 0
        histogram = Histogram(
            exponents, zeros, record.infinities or 0, record.nans or 0, record.largest
        )
        return cls(
            record.layer,
            record.tensor,
            histogram,
            record.variable,
            record.norm,
            record.scale if record.scale and 0 < record.scale < math.inf else 1.0,
            record.underflow,
            record.dtype,
        )


@dataclass(frozen=True)
class Probe:
    """One look at a model's numbers. ``print`` shows a table; a notebook shows the picture.

    Attributes:
        rows: Activations, gradients and weight gradients, in the order of the forward pass.
        format: The format whose view the table takes.
        scale: The loss scale applied to gradients.
        loss: Of the batch, in float32. own_loss: As the model itself computes it; None where that
            is the same.
        model: Its name. unseen: Layers that were called where no value could be read, with why.
    """

    rows: tuple[Row, ...]
    format: str = "float16"
    scale: float = 1.0
    loss: float | None = None
    own_loss: float | None = None
    model: str = "model"
    unseen: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def of(self, tensor: Kind) -> list[Row]:
        """The rows of one kind."""
        return [row for row in self.rows if row.tensor == tensor]

    def get(self, name: str, tensor: Kind = "gradient") -> Row:
        """The row of a layer (or variable) by path.

        Raises:
            KeyError: It was not seen.
        """
        for row in self.rows:
            if row.tensor == tensor and row.name == name:
                return row
        raise KeyError(
            f"{tensor} of {name!r} was not seen. Seen: {[r.name for r in self.of(tensor)]}"
        )

    def at(self, scale: float) -> "Probe":
        """The same numbers under another loss scale (``underflow``, which was measured, left)."""
        rows = tuple(
            row if row.tensor == "activation" else replace(row, scale=scale, underflow=None)
            for row in self.rows
        )
        return replace(self, rows=rows, scale=scale)

    @property
    def gradients(self) -> list[Row]:
        return [row for row in self.rows if row.tensor != "activation"]

    @property
    def lost(self) -> float | None:
        """Share of all non-zero activation gradients that the format loses; None without any.

        As with all that is told of the whole model: of a mixed one, float32 layers are left out.
        """
        return lost_share(in_half(self.of("gradient")), self.format, self.scale)

    @property
    def underflow(self) -> float | None:
        """Share of all activation gradients' values that the model's own pass made zero though
        float32 did not; None if it was not measured."""
        measured = [row for row in self.of("gradient") if row.underflow is not None]
        total = sum(row.histogram.total for row in measured)
        if not total:
            return None
        return sum((row.underflow or 0.0) * row.histogram.total for row in measured) / total

    @property
    def largest_scale(self) -> float:
        """The largest loss scale with which no gradient of this batch overflows the format."""
        return largest_scale(in_half(self.gradients), self.format)

    def __str__(self) -> str:
        from keras_mp.numerics.table import as_text

        return as_text(self)

    def svg(self) -> str:
        """The picture: exponents of every layer, with what the format does to them."""
        from keras_mp.numerics.picture import draw

        return draw(self)

    def _repr_svg_(self) -> str:
        return self.svg()


def in_half(rows: Iterable[Row]) -> list[Row]:
    """The rows that are in half precision, or would be: all, where none is.

    A layer that is kept in float32 loses nothing to float16, and overflows nothing.
    """
    every = list(rows)
    return [row for row in every if row.dtype != "float32"] or every


def lost_share(rows: Iterable[Row], fmt: "str | Format", scale: float) -> float | None:
    """Share of all non-zero values that a format rounds to zero at a scale; None without any."""
    lost = nonzero = 0.0
    for row in rows:
        total = row.histogram.total
        told = row.shares(fmt, scale)
        lost += told.lost * total
        nonzero += total - row.histogram.zeros - row.histogram.nans - row.histogram.infinities
    return lost / nonzero if nonzero else None


def largest_scale(rows: Iterable[Row], fmt: "str | Format" = "float16") -> float:
    """The largest scale with which the rows' largest values fit; 0 if some are not finite."""
    limit = math.inf
    for row in rows:
        if row.histogram.infinities or row.histogram.nans:
            return 0.0
        if row.histogram.largest:
            limit = min(limit, get_format(fmt).max / row.histogram.largest)
    return limit
