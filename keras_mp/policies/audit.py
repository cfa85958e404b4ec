"""What will go wrong, or be left out, when a model trains as it stands: before it does."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import keras

from keras_mp.policies import worth
from keras_mp.policies.categories import is_a
from keras_mp.policies.classes import gives_float32
from keras_mp.policies.compiled import half_losses, last_axis, wrong_metrics
from keras_mp.policies.detect import device_of
from keras_mp.policies.hardware import Device
from keras_mp.policies.hazards import Circumstances, half_variables, hazard
from keras_mp.policies.mixing import one_dtype
from keras_mp.policies.own_code import needs_of_code
from keras_mp.policies.policy import resolve_one
from keras_mp.policies.raw import raw_values
from keras_mp.policies.structure import Place, Structure, below, structure_of
from keras_mp.policies.work import work_of

Severity = Literal["error", "warning"]
HALF = ("float16", "bfloat16")
# Reasons that round results, where the others make them infinite, NaN or impossible.
_ROUNDING = ("output", "output-activation")


@dataclass(frozen=True)
class Finding:
    """One thing that will go wrong.

    Attributes:
        severity: "error" for values that become infinite, NaN or constant, or code that raises;
            "warning" for precision lost or a policy that does not do what it says.
        layer: Path of the layer; "" for the model.
        code: The reason, in a word that never changes.
        why: The same in a sentence.
        fix: Python code that mends it, with ``model`` for the model.
    """

    severity: Severity
    layer: str
    code: str
    why: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.severity:<8} {self.layer or '(model)'}: {self.why} [{self.code}]"
            f"\n         {self.fix}"
        )


@dataclass(frozen=True)
class AuditReport:
    """All findings, errors first."""

    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def exit_status(self) -> int:
        """0 nothing found, 1 warnings, 2 errors."""
        severities = {finding.severity for finding in self.findings}
        return 2 if "error" in severities else 1 if severities else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "exit_status": self.exit_status,
        }

    def __str__(self) -> str:
        if not self.findings:
            return "nothing found that mixed precision would make wrong"
        return "\n".join(map(str, self.findings))


def audit(
    model: Any, policy: str | None = None, *, device: Device | str | None = None
) -> AuditReport:
    """Look for what mixed precision will make wrong in a built model. Nothing is changed.

    Args:
        model: A built model; compiled if its optimizer is to be looked at too.
        policy: Look at it as if every layer had this policy. None (the default) takes each layer's
            own.
        device: Where the model will compute, as ``recommend`` takes it. Defaults to the device of
            this process.

    Raises:
        ValueError: The model is not built, or the policy or device is not known.
    """
    name = None if policy is None else resolve_one(policy)
    structure = structure_of(model)
    where = device_of(device)
    backend = keras.backend.backend()
    raw = {path: one for path, one in raw_values(structure).items() if one.sure}
    code = {half: needs_of_code(structure, half, backend) for half in HALF}
    findings: list[Finding] = []
    own: dict[str, str] = {}
    for place in structure.places:
        policy_of = own[place.path] = name or _own_policy(place.layer)
        if name is None and place.layer.quantization_mode == "float8":
            findings.append(_float8(place, policy_of))
        half = keras.DTypePolicy(name).compute_dtype if name else place.layer.compute_dtype
        if half not in HALF or _is_part(place) or _is_quantized(place):
            continue
        around = Circumstances(half, backend, where, structure, raw=raw, code=code[half])
        plan_it = f"keras_mp.plan(model, {policy_of!r}).apply(model)"
        if name is None and _left_behind(place, around):
            sentence = (
                f"its policy is {policy_of}, and none of the layers that it holds computes by it: "
                "Keras' setter changes one layer alone"
            )
            findings.append(Finding("warning", place.path, "policy-left-behind", sentence, plan_it))
        reason = hazard(place, around)
        if reason is not None:
            severity: Severity = "warning" if reason.code in _ROUNDING else "error"
            findings.append(Finding(severity, place.path, reason.code, reason.sentence, plan_it))
    for path, (_, reason) in one_dtype(structure, own, dict.fromkeys(own, "")).items():
        plan_it = f"keras_mp.plan(model, {own[path]!r}).apply(model)"
        findings.append(Finding("error", path, reason.code, reason.sentence, plan_it))
    findings += _slow(structure, where, own, {finding.layer for finding in findings})
    findings += _compiled(model, structure, name)
    if name is None:
        findings += _optimizer(model, structure)
    order = {"error": 0, "warning": 1}
    return AuditReport(tuple(sorted(findings, key=lambda finding: order[finding.severity])))


def _compiled(model: Any, structure: Structure, name: str | None) -> Iterator[Finding]:
    """Metrics and losses that cannot take what the model gives, with ours in their place."""
    policy = None if name is None else keras.DTypePolicy(name).compute_dtype
    wrong = list(half_losses(model))
    for place in structure.places:
        half = policy or place.layer.compute_dtype
        if place.output and not place.children and half in HALF and not gives_float32(place.layer):
            wrong += wrong_metrics(model, half, last_axis(model))
            break
    for one in wrong:
        yield Finding("error" if one.error else "warning", "", one.code, one.why, one.fix)


def _own_policy(layer: Any) -> str:
    """The policy that a layer computes by, though it may stand in a map, or be quantized."""
    compute, variable = layer.compute_dtype, layer.variable_dtype
    return str(compute) if compute == variable else f"mixed_{compute}"


def _float8(place: Place, source: str) -> Finding:
    """Keras' own float8: two of its layers have it, and they only imitate it."""
    fix = f"keras_mp.plan(model, {source!r}).apply(model)"
    if is_a(place.layer, "Dense", "EinsumDense"):
        sentence = (
            f"its float8 is an imitation: values are rounded to float8 and then multiplied in "
            f"{place.layer.compute_dtype}, which costs time and saves nothing"
        )
        return Finding("warning", place.path, "float8-policy", sentence, fix)
    sentence = "it has a float8 policy and no float8 code: it raises when it is called"
    return Finding("error", place.path, "float8-policy", sentence, fix)


def _slow(
    structure: Structure, device: Device, own: dict[str, str], known: set[str]
) -> Iterator[Finding]:
    """What computes the right values with less gain than it could."""
    products = sum(work_of(place).products for place in structure.places)
    in_half = [
        place
        for place in structure.places
        if keras.DTypePolicy(own[place.path]).compute_dtype in HALF
        and place.path not in known
        and not _is_part(place)
    ]
    for place in in_half:
        found = worth.alignment(place, device, products)
        if found is not None:
            reason, name, better = found
            kind = f"keras.layers.{type(place.layer).__name__}"
            fix = (
                f"{kind}.from_config({{**{_expression(place)}.get_config(), {name!r}: {better}}})"
                "  # build the model anew with it"
            )
            yield Finding("warning", place.path, reason.code, reason.sentence, fix)
    small = worth.too_small(structure, own, {place.path for place in in_half})
    for path, reason in small.items():
        fix = f"keras_mp.plan(model, {own[path]!r}).apply(model)"
        yield Finding("warning", path, reason.code, reason.sentence, fix)


def _expression(place: Place) -> str:
    """Python for a layer of ``model``, where it stands in models in models."""
    if place.parent is None:
        return "model"
    return f"{_expression(place.parent)}.get_layer({place.layer.name!r})"


def _is_part(place: Place) -> bool:
    return place.parent is not None and place.parent.category not in ("container", "custom")


def _is_quantized(place: Place) -> bool:
    """Whether no policy changes what the layer computes in."""
    return place.layer.quantization_mode not in (None, "float8")


def _left_behind(place: Place, around: Circumstances) -> bool:
    """Whether nothing that the layer holds follows its policy, though something could."""
    held = [inner for inner in below(place) if not inner.children and not _is_quantized(inner)]
    if any(inner.layer.compute_dtype in HALF for inner in held):
        return False
    return any(hazard(inner, around) is None for inner in held)


def _optimizer(model: Any, structure: Structure) -> Iterator[Finding]:
    from keras_mp.scaling.optimizer import LossScaleOptimizer

    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, LossScaleOptimizer):
        return
    recompile = "model.compile(optimizer=keras_mp.LossScaleOptimizer({}), loss=model.loss)"
    anew = "type(model.optimizer).from_config(model.optimizer.get_config())"
    trained = [place for place in structure.places if place.layer.trainable_variables]
    in_half = next((p for p in trained if not p.children and half_variables(p.layer)), None)
    if in_half is not None:
        yield Finding(
            "error",
            in_half.path,
            "half-variables",
            f"its weights are {in_half.layer.variable_dtype}: an update below 1/2048 of a weight "
            "(1/256 in bfloat16) leaves it as it is. Keep float32 masters",
            recompile.format(anew),  # one that has slots in half precision already is too late
        )
    scales = (
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor
    )
    in_float16 = [place for place in trained if place.layer.compute_dtype == "float16"]
    # A model that casts its inputs to float16, and whose layers compute in others, needs no scale.
    unscaled = any(place.category != "container" for place in in_float16) and not scales
    if unscaled:
        yield Finding(
            "error",
            in_float16[0].path,
            "unscaled-float16",
            "it computes in float16 and the optimizer does not scale the loss: gradients below "
            "2^-24 become zero",
            recompile.format("model.optimizer"),
        )
