"""What a trial found, as plain records: no backend. ``keras_mp.bench.trial`` has the schema."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT = 1
KIND = "keras-mp trial"


@dataclass(frozen=True)
class Spread:
    """The median of one figure a round, and the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Split:
    """Seconds of one training step.

    Attributes:
        input: Waiting for a batch and for its way to the device. What is fetched while the device
            computes is not in it.
        compute: Forward and backward pass.
        optimizer: Unscaling, checking, updating.
        other: What ``fit`` takes beyond these: its loop, metrics, Python.
    """

    input: float
    compute: float
    optimizer: float
    other: float

    @property
    def step(self) -> float:
        return self.input + self.compute + self.optimizer + self.other


@dataclass(frozen=True)
class Memory:
    """Bytes of one training step, as a line in the batch size: ``fixed + slope * batch``.

    Attributes:
        what: "allocator peak" (a GPU), or "parameters + slots + saved bytes" (a CPU).
        points: The measured (batch size, bytes), by batch size.
        fixed: Bytes that do not grow with the batch.
        slope: Bytes a sample.
        slopes: The two slopes between neighbouring points; close to each other if it is a line.
        largest_batch: The largest batch that fits into ``budget`` less ``headroom``; None if not
            even one sample does.
        budget: Bytes that there are; 0 where nothing tells (then ``largest_batch`` is None).
        headroom: The share of the budget that is left free.
    """

    what: str
    points: list[tuple[int, int]]
    fixed: float
    slope: float
    slopes: tuple[float, float]
    largest_batch: int | None
    budget: int
    headroom: float

    def at(self, batch: int) -> float:
        """Bytes predicted for a batch size."""
        return self.fixed + self.slope * batch


@dataclass(frozen=True)
class Variant:
    """One precision's measurements.

    Attributes:
        name: "float32", "mixed_bfloat16", "mixed_float16" or "planned".
        policy: The policy asked for; of "planned", the one its plan was made for.
        samples_per_s: One figure a round.
        rate: Their median and quartiles.
        speedup: The same of the ratios to float32 in the same round; None for float32 itself and
            where float32 failed.
        losses: The loss of each step, the same batches in the same order for every variant, from
            the same weights.
        split: None where it was not measured.
        memory: None where nothing on this backend tells it; ``memory_unknown`` says why.
        skipped: Steps that the loss scale skipped.
        support: What the device does with the policy's compute dtype: "fast", "slow", "emulated",
            "none" or "unknown"; ``support_why`` is a clause about it.
        float32_layers: Layers that compute in float32 although the policy is a half-precision one.
        error: Why this variant has no figures; None where it has.
    """

    name: str
    policy: str
    samples_per_s: list[float] = field(default_factory=list)
    rate: Spread | None = None
    speedup: Spread | None = None
    losses: list[float] = field(default_factory=list)
    split: Split | None = None
    memory: Memory | None = None
    memory_unknown: str | None = None
    skipped: int = 0
    support: str = "unknown"
    support_why: str = ""
    float32_layers: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class Advice:
    """What follows from the figures.

    Attributes:
        switch_to: Name of the variant to use; "float32" to stay.
        held_back: (a word that never changes, a sentence) for each thing that limits the gain.
        paragraph: All of it in words.
    """

    switch_to: str
    held_back: list[tuple[str, str]]
    paragraph: str


@dataclass(frozen=True)
class Trial:
    """A trial's result. ``print`` shows a table and the advice."""

    model: str
    backend: str
    versions: dict[str, str]
    device: str
    threads: int | None
    parameters: int
    batch_size: int
    steps: int
    rounds: int
    data: str
    notes: list[str]
    variants: list[Variant]
    advice: Advice
    format: int = FORMAT
    kind: str = KIND

    def __getitem__(self, name: str) -> Variant:
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(variant.name == name for variant in self.variants)

    def to_json(self) -> str:
        """The trial as JSON text. Numbers that are not finite are "nan", "inf" and "-inf"."""
        return json.dumps(_strings_for_nonfinite(asdict(self)), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Trial":
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: It is no trial, or one of a later format.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ValueError(f"This is no JSON. Received: {text[:60]!r}") from error
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError(
                f"This is no trial. Expected JSON that `keras-mp bench --json` wrote, with "
                f'"kind": "{KIND}". Received: {text[:60]!r}'
            )
        if data.get("format") != FORMAT:
            raise ValueError(
                f"The trial has another format. Expected {FORMAT}. "
                f"Received: format={data.get('format')!r}"
            )
        try:
            variants = [_variant(item) for item in data["variants"]]
            advice = Advice(
                data["advice"]["switch_to"],
                [(code, sentence) for code, sentence in data["advice"]["held_back"]],
                data["advice"]["paragraph"],
            )
            known = _known(cls, data) | {"variants": variants, "advice": advice}
            return cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The trial is incomplete. Received: {error!r}") from error

    @classmethod
    def read(cls, path: "str | Path") -> "Trial":
        """Read a file. Raises OSError, or ValueError as ``from_json``, with the file's name."""
        # A mark of byte order, which some programs put in front, is passed over.
        text = Path(path).read_bytes().decode("utf-8-sig", "replace")
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __str__(self) -> str:
        from keras_mp.bench.text import as_text

        return as_text(self)


_NONFINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def _strings_for_nonfinite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: _strings_for_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strings_for_nonfinite(item) for item in value]
    return value


def _number(value: Any) -> float:
    return _NONFINITE[value] if isinstance(value, str) else float(value)


def _known(cls: Any, data: dict[str, Any]) -> dict[str, Any]:
    """The keys that this version knows: others are a later version's, and left alone."""
    names = {each.name for each in fields(cls)}
    return {key: value for key, value in data.items() if key in names}


def _variant(data: dict[str, Any]) -> Variant:
    known = _known(Variant, data)
    for key, kind in (("rate", Spread), ("speedup", Spread), ("split", Split)):
        if known.get(key) is not None:
            known[key] = kind(**{k: _number(v) for k, v in _known(kind, known[key]).items()})
    for key in ("samples_per_s", "losses"):
        known[key] = [_number(value) for value in known.get(key, [])]
    if known.get("memory") is not None:
        memory = _known(Memory, known["memory"])
        memory["points"] = [(int(batch), int(size)) for batch, size in memory["points"]]
        memory["slopes"] = tuple(memory["slopes"])
        known["memory"] = Memory(**memory)
    return Variant(**known)
