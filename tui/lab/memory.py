"""Memory: what a training step keeps, by precision, with the model's size and the batch moved."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from keras_mp.bench.capacity import HEADROOM
from keras_mp.bench.footprint import PARTS, RECIPES, SLOTS, Footprint, footprint
from keras_mp.policies.cards import cards
from keras_mp.telemetry.format import count, share, size
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.lab.page import Page, press, text, turn
from tui.lab.recorded import nets
from tui.look import Look

OPTIMIZERS = ("adam", "momentum", "sgd")
ROLES: tuple[Role, ...] = ("line", "line2", "line3", "line4", "good")
NAME, ALL, BAR = 17, 9, 55
WIDTHS = (10, 10, 10, 10, 12, ALL)
STOCK = "stock"
# "mixed" and "stock" keep what was measured, the others what arithmetic says.
TITLES = {name: recipe.title for name, recipe in RECIPES.items()} | {
    "mixed": "mixed, ours",
    STOCK: "mixed, stock",
}


class MemoryPage(Page):
    TITLE: ClassVar[str] = "Memory"
    KEYS: ClassVar[tuple[Key, ...]] = (
        press("up,k", "↑↓", "model", "Another model, measured.", 1),
        press("down,j", "", "", ""),
        press("left", "← →", "batch", "Half or twice the batch.", 1),
        press("right", "", "", ""),
        press(
            "plus,equals_sign", "+ -", "size", "A model twice or half as large, in all parts.", 1
        ),
        press("minus", "", "", ""),
        press("o", "o", "optimizer", "Adam, SGD with momentum, plain SGD.", 2),
        press("c", "c", "card", "Another card: the largest batch that fits.", 2),
        press("0", "0", "begin again", "The model's own size, a batch of 32.", 4),
    )

    def __init__(self) -> None:
        self.net = nets()[1]
        self.cards = sorted(
            (card for card in cards() if card.memory), key=lambda card: card.memory or 0.0
        )
        self.card = next(card for card in self.cards if "V100" in card.device.name)
        self.optimizer = OPTIMIZERS[0]
        self._begin()

    def _begin(self) -> None:
        self.batch = 32
        self.factor = 1.0

    def press(self, key: str) -> None:
        match key:
            case "up" | "down":
                self.net = turn(nets(), self.net, 1 if key == "down" else -1)
            case "left" | "right":
                batch = self.batch * 2 if key == "right" else self.batch // 2
                self.batch = min(max(batch, 1), 2**16)
            case "plus" | "minus":
                factor = self.factor * (2.0 if key == "plus" else 0.5)
                self.factor = min(max(factor, 2.0**-6), 2.0**8)
            case "o":
                self.optimizer = turn(OPTIMIZERS, self.optimizer)
            case "c":
                self.card = turn(self.cards, self.card)
            case "0":
                self._begin()

    @property
    def parameters(self) -> float:
        return self.net.parameters * self.factor

    @property
    def activations(self) -> float:
        """Numbers a sample, as float32 keeps them."""
        return self.net.kept / 4 * self.factor

    def footprints(self) -> dict[str, Footprint]:
        """Recipe -> bytes; of mixed precision with our layers and with Keras' own."""
        slots = SLOTS[self.optimizer]
        found = {}
        for name in RECIPES:
            found[name] = footprint(self.parameters, self.activations, self.batch, name, slots)
            if name == "mixed":
                net, arithmetic = self.net, found[name]
                found[name] = self._keeps(arithmetic, net.kept_ours, net.casts_ours)
                found[STOCK] = self._keeps(arithmetic, net.kept_stock, net.casts_stock)
        return found

    def _keeps(self, of: Footprint, kept: float, casts: int) -> Footprint:
        """With what was measured: of the weights only what is kept in half precision besides."""
        return replace(
            of,
            weights=round(casts * self.factor),
            activations=round(kept * self.factor * self.batch),
        )

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        f = self.factor
        factor = "" if f == 1 else f" × {f:g}" if f > 1 else f" ÷ {1 / f:g}"
        found = self.footprints()
        top = max(of.total for of in found.values())
        rows: list[Row] = [
            text(
                (self.net.name + factor, "strong"),
                (f"   {count(self.parameters)} parameters, ", "muted"),
                (f"{count(self.activations)} kept a sample", "muted"),
            ),
            text(
                ("batch ", "muted"),
                (f"{self.batch:,}", "strong"),
                (f"   {self.optimizer}: {SLOTS[self.optimizer]} slots a weight", "muted"),
            ),
            [],
            text((fit("", NAME) + _cells((*PARTS, "all")), "muted")),
        ]
        for name, of in found.items():
            cells = _cells([size(value) for value in (*of.parts().values(), of.total)])
            rows.append(text(fit(TITLES[name], NAME), cells[:-ALL], (cells[-ALL:], "strong")))
        rows += [[], self._legend(look)]
        for name, of in found.items():
            whole = found["float32"].total
            rows.append(
                [
                    (fit(TITLES[name], NAME), "text"),
                    *self._bar(of, top, look),
                    (f" {share(of.total / whole)}", "muted"),
                ]
            )
        return [*rows, [], *self._fits()]

    def _legend(self, look: Look) -> Row:
        row: Row = [(" " * NAME, "muted")]
        for sign, part, role in zip(_signs(look), PARTS, ROLES, strict=True):
            row += [(sign, role), (f" {part}  ", "muted")]
        return row

    def _bar(self, of: Footprint, top: float, look: Look) -> Row:
        row: Row = []
        before, done = 0, 0
        for (_, value), sign, role in zip(of.parts().items(), _signs(look), ROLES, strict=True):
            before += value
            end = round(before / top * BAR)
            row.append((sign * (end - done), role))
            done = end
        return row

    def _fits(self) -> Iterator[Row]:
        memory = (self.card.memory or 0.0) * 1e9
        batches = {}
        for name, of in self.footprints().items():
            room = memory * (1 - HEADROOM) - (of.total - of.activations)
            batches[name] = max(0, int(room * self.batch // of.activations))
        yield text(
            (f"{self.card.device.name} ({self.card.memory:g} GB): ", "muted"),
            f"batch {count(batches['float32'])} in float32, {count(batches['mixed'])} in mixed",
            (", a tenth free", "muted"),
        )
        words = "mixed: measured on torch. Its masters are the weights; weights: copies kept."
        yield text((words, "muted"))


def _cells(texts: Sequence[str]) -> str:
    return "".join(fit(t, w, right=True) for t, w in zip(texts, WIDTHS, strict=True))


def _signs(look: Look) -> str:
    return "█▓▒░·" if look.unicode else "wmgsa"
