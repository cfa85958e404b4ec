"""The records that a job writes about itself, one JSON object a line.

No dependency on a backend or on the dashboard. A field that was not measured is ``None`` and absent
from the line: what is unknown is shown as unknown. Non-finite numbers are the strings ``"nan"``,
``"inf"`` and ``"-inf"``, because bare ``NaN`` is not JSON.

Units: ``time`` is seconds since the epoch (wall clock), durations are seconds, memory is bytes,
shares are 0 to 1. ``step`` counts attempted optimizer steps (skipped ones too), from 1.
"""

import math
import numbers
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

SCHEMA_VERSION = 1

Origin = Literal["loss", "backward", "unknown"]
Status = Literal["done", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Who runs, where, with what: ``meta.json``, written once a start.

    Attributes:
        run_id: Folder name under the runs folder.
        name: What the user calls it; defaults to the run id.
        started: Seconds since the epoch.
        host, pid, process_started: The process; its own start time tells a reused pid apart.
        versions: Package name to version: python, keras, the backend, keras_mp.
        scaler: ``ScaleConfig`` as a dict, with ``preset``; None without a loss scale optimizer.
        planned_steps, planned_epochs, steps_per_epoch: What the job means to do, if known.
    """

    run_id: str
    name: str
    started: float
    host: str
    pid: int
    process_started: float | None = None
    rank: int = 0
    world_size: int = 1
    backend: str | None = None
    device: str | None = None
    policy: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    scaler: dict[str, Any] | None = None
    optimizer: str | None = None
    model: str | None = None
    parameters: int | None = None
    planned_steps: int | None = None
    planned_epochs: int | None = None
    steps_per_epoch: int | None = None
    argv: list[str] = field(default_factory=list)
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class Start:
    """A process begins to write: the first line of each file, and again whenever a run is resumed.

    Attributes:
        schema: Version of the records that follow; a reader refuses one newer than its own.
        step: The last step already done (0 for a fresh run). Points after it are of lost work.
        seq: Number of the file within the rank's journal, from 0 (rotation by size).
        continues: The same process goes on writing (in a further file, or after a full disk).
    """

    kind: ClassVar[str] = "start"
    schema: int = SCHEMA_VERSION
    step: int = 0
    time: float
    rank: int = 0
    pid: int | None = None
    seq: int = 0
    continues: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A window of steps that ends with ``step``.

    Attributes:
        steps: Steps in the window.
        loss: Mean over the window's samples; of the finite steps alone where they can be told
            apart. Non-finite if no step of the window had a finite loss.
        metrics: As the training loop reports them (Keras: the epoch's running means).
        samples, tokens: Seen in the window.
        seconds: Length of the window, wall clock, without the telemetry's own time.
        compiling: Seconds of ``seconds`` that went into a first, compiling step; such a window
            says nothing of the pace.
        input_wait: Seconds of ``seconds`` that the job waited for its batches; None where nobody
            can see it. (A TensorFlow step draws its batch itself: there one wait stands for all.)
        step_time_p50, step_time_p95: Of the single steps in the window.
        scale: Loss scale after ``step``. skipped, applied: totals since the job was first started.
        good_steps: Clean updates since the scale last changed (the countdown to growth).
        grad_norm: Global norm of the unscaled gradients at the last finite step of the window.
    """

    kind: ClassVar[str] = "step"
    step: int
    time: float
    epoch: int | None = None
    steps: int = 1
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    samples: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    compiling: float | None = None
    input_wait: float | None = None
    step_time_p50: float | None = None
    step_time_p95: float | None = None
    scale: float | None = None
    skipped: int | None = None
    applied: int | None = None
    good_steps: int | None = None
    grad_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """One skipped step.

    Attributes:
        scale_before, scale_after: The loss scale this step used, and the next one's.
        variables: Paths of the variables whose gradients were not finite.
        layer: The member of that set nearest the loss.
        origin: "loss" only if the loss itself was not finite.
        optimizer: Which one skipped, where a job has several; None for the first.
    """

    kind: ClassVar[str] = "overflow"
    step: int
    time: float
    epoch: int | None = None
    scale_before: float | None = None
    scale_after: float | None = None
    variables: list[str] = field(default_factory=list)
    layer: str | None = None
    origin: Origin = "unknown"
    optimizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes. device_*: the backend's allocator; process_resident: resident set of the process."""

    kind: ClassVar[str] = "memory"
    step: int
    time: float
    device_allocated: int | None = None
    device_peak: int | None = None
    device_reserved: int | None = None
    device_total: int | None = None
    process_resident: int | None = None
    saved_bytes: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The end of an epoch (counted from 0), with its logs."""

    kind: ClassVar[str] = "epoch"
    epoch: int
    step: int
    time: float
    seconds: float | None = None
    logs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How one tensor's values lie at one step, and what a format makes of them.

    Values are those of float32 on the same batch, gradients unscaled; the shares are of what
    ``format`` sees once they are multiplied by ``scale``.

    Attributes:
        layer: Path of the layer (``keras_mp.plan``'s paths), or name of a function between layers.
        tensor: The layer's output, the gradient of the loss with respect to it, or the gradient of
            one of its variables.
        variable: Of a "weight_gradient": the variable's path; None otherwise.
        dtype: What the layer computes in; None where that is not known.
        histogram: floor(log2 |x|) of finite, non-zero values -> their count.
        values: How many there are. zeros, infinities, nans: Those not in the histogram.
        format: Such as "float16". scale: The loss scale of the step; 1 for activations.
        zero: Share that is zero in float32 already. lost: Not zero, but rounded to zero.
        subnormal, normal, near, overflow: The rest; near is within two doublings of overflow.
        underflow: Share that the job's own pass made zero though float32 says it is not; measured
            in jobs that compute in float16.
        largest: Largest finite magnitude, unscaled. norm: L2 norm, unscaled.
        headroom: Doublings until the largest value overflows the format; negative if it does.
    """

    kind: ClassVar[str] = "numerics"
    step: int
    time: float
    layer: str
    tensor: Literal["activation", "gradient", "weight_gradient"]
    variable: str | None = None
    dtype: str | None = None
    histogram: dict[str, int] = field(default_factory=dict)
    values: int | None = None
    zeros: int | None = None
    infinities: int | None = None
    nans: int | None = None
    format: str | None = None
    scale: float | None = None
    zero: float | None = None
    lost: float | None = None
    subnormal: float | None = None
    normal: float | None = None
    near: float | None = None
    overflow: float | None = None
    underflow: float | None = None
    largest: float | None = None
    norm: float | None = None
    headroom: float | None = None


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something the user should see: a verdict that changed, an exhausted scale, a lost record."""

    kind: ClassVar[str] = "alert"
    step: int
    time: float
    severity: Literal["info", "warning", "error"]
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """A measure of the finished job in the user's own terms, such as {"hits": 0.703}."""

    kind: ClassVar[str] = "result"
    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class End:
    kind: ClassVar[str] = "end"
    step: int
    time: float
    status: Status
    reason: str | None = None


Record = Start | Step | Overflow | Memory | Epoch | Numerics | Alert | Result | End
KINDS: dict[str, type] = {
    c.kind: c for c in (Start, Step, Overflow, Memory, Epoch, Numerics, Alert, Result, End)
}


def encode_number(value: float) -> float | int | str:
    """A number as JSON holds it: non-finite ones as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if value != value else ("inf" if value > 0 else "-inf")
    return value


def plain(value: Any) -> Any:
    """Anything as JSON can hold it; what has no JSON form becomes its text."""
    if value is None or isinstance(value, bool | str | int):
        return value if not isinstance(value, int) or isinstance(value, bool) else int(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return encode_number(float(value))
    return str(value)


def encode(record: Any) -> dict[str, Any]:
    """A record as a JSON-ready dict: kind first, what is empty left out, NumPy numbers as plain."""
    out: dict[str, Any] = {}
    kind = getattr(record, "kind", None)
    if kind is not None:
        out["kind"] = kind
    for f in fields(record):
        value = getattr(record, f.name)
        if value is None or (isinstance(value, dict | list) and not value):
            continue
        out[f.name] = plain(value)
    return out
