"""Run one case in half precision and in float32, and tell where they differ by too much."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops
from sweep import backends
from sweep.cases import Case
from sweep.precision import FLOAT32_LARGEST, FORMATS, Half, difference, fits, is_floating, shaken

from keras_mp._precision import is_half

SHAKES = 2


class FunctionSubject:
    """A function of tensors: in half precision its floating arguments are."""

    def __init__(self, case: Case, half: str | None):
        self.case, self.half = case, half

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        out = []
        for array, spec in zip(arrays, self.case.inputs, strict=True):
            tensor = array if array.dtype.kind in "US" else ops.convert_to_tensor(array)
            if self.half and array.dtype == np.float32 and not getattr(spec, "label", False):
                tensor = ops.cast(tensor, self.half)
            out.append(tensor)
        return out

    def outputs(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        return backends.forward(self.case.make, self.tensors(arrays))

    def gradients(self, arrays: Sequence[np.ndarray], cotangents: list[np.ndarray]) -> list[Any]:
        labels = [i for i, s in enumerate(self.case.inputs) if getattr(s, "label", False)]
        return backends.gradients(self.case.make, self.tensors(arrays), cotangents, constant=labels)

    def wrong_dtypes(self, outputs: list[Any]) -> list[str]:
        return []

    def largest(self, output: Any, half: Half) -> float:
        """A function that gives float32, as a metric does, may give any of its numbers."""
        return half.largest if is_half(output) else FLOAT32_LARGEST


def failures(case: Case, subjects: dict[str, Any], reference: Any, halves: dict[str, str]) -> Any:
    """By subject and magnitude, what is wrong.

    Args:
        subjects: By name, in half precision.
        reference: The same in float32.
        halves: By name of a subject, its half format.

    Returns:
        Name of a subject -> magnitude -> words, only where something is wrong.
    """
    wrong: dict[str, dict[str, str]] = {name: {} for name in subjects}
    for magnitude in case.magnitudes:
        arrays = case.draw(magnitude)
        expected = _Expected(case, reference, arrays)
        for name, subject in subjects.items():
            try:
                told = "; ".join(expected.compare(subject, FORMATS[halves[name]]))
            except Exception as error:
                told = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if told:
                wrong[name][magnitude] = told
    return wrong


class _Expected:
    """Float32's results for some inputs, and how far they move when the inputs are shaken."""

    def __init__(self, case: Case, reference: Any, arrays: list[np.ndarray]):
        self.case, self.arrays = case, arrays
        self.outputs = [backends.host(o) for o in reference.outputs(arrays)]
        self.moved: list[list[np.ndarray]] = []
        if case.random:
            return
        moves = [self._shaken(seed) for seed in range(SHAKES)]
        with _shaken_variables(reference) as shake:
            for seed, move in enumerate(moves):
                shake(seed)
                self.moved.append([backends.host(o) for o in reference.outputs(move)])
        self.gradients: list[Any] | None = None
        if not case.gradient or not any(is_floating(o) for o in self.outputs):
            return
        rng = np.random.default_rng(3)
        self.cotangents = [
            rng.choice([-1.0, -0.75, 0.5, 1.0], size=o.shape).astype("float32")
            for o in self.outputs
            if is_floating(o)
        ]
        self.gradients = reference.gradients(arrays, self.cotangents)
        self.scale = _scale_for(self.gradients)
        self.moved_gradients = []
        with _shaken_variables(reference) as shake:
            for seed, move in enumerate(moves):
                shake(seed)
                cotangents = [shaken(c, seed + 5) for c in self.cotangents]
                self.moved_gradients.append(reference.gradients(move, cotangents))

    def _shaken(self, seed: int) -> list[np.ndarray]:
        """Labels are given, and never rounded: they stay."""
        return [
            shaken(a, seed) if a.dtype == np.float32 and not getattr(spec, "label", False) else a
            for a, spec in zip(self.arrays, self.case.inputs, strict=True)
        ]

    def compare(self, subject: Any, half: Half) -> Iterator[str]:
        tensors = subject.outputs(self.arrays)
        yield from subject.wrong_dtypes(tensors)
        outputs = [backends.host(o) for o in tensors]
        if len(outputs) != len(self.outputs):
            yield f"{len(outputs)} outputs instead of {len(self.outputs)}"
            return
        if self.case.random:
            yield from self._sane(outputs)
            return
        for i, (expected, got) in enumerate(zip(self.outputs, outputs, strict=True)):
            moved = [m[i] for m in self.moved]
            told = difference(
                expected,
                got,
                moved,
                half,
                self.case.roundings,
                each=self.case.each,
                largest=subject.largest(tensors[i], half),
            )
            if told:
                yield f"output {i}: {told}"
        if self.gradients is None or not all(fits(o, half) for o in self.outputs):
            return
        scaled = [c * np.float32(self.scale) for c in self.cotangents]
        gradients = subject.gradients(self.arrays, scaled)
        for i, (expected, got) in enumerate(zip(self.gradients, gradients, strict=True)):
            if expected is None or i in self.case.vanishing:
                continue
            if got is None:
                yield f"gradient {i}: none"
                continue
            told = difference(
                expected,
                got / np.float32(self.scale),
                [m[i] for m in self.moved_gradients],
                half,
                2 * self.case.roundings,  # forward and back
                smallest=half.smallest / self.scale,
            )
            if told:
                yield f"gradient {i}: {told}"

    def _sane(self, outputs: list[np.ndarray]) -> Iterator[str]:
        for i, (expected, got) in enumerate(zip(self.outputs, outputs, strict=True)):
            if got.shape != expected.shape:
                yield f"output {i}: shape {got.shape} instead of {expected.shape}"
            elif is_floating(expected) and not np.isfinite(got[np.isfinite(expected)]).all():
                yield f"output {i}: not finite"


def _scale_for(gradients: list[Any]) -> float:
    """A loss scale as a loss scale optimizer finds it: a power of two, far from both ends."""
    largest = max(
        (float(np.max(np.abs(g), initial=0)) for g in gradients if g is not None), default=0
    )
    if not np.isfinite(largest) or largest == 0:
        return 1.0
    return float(2.0 ** np.clip(np.floor(np.log2(1024 / largest)), -12, 12))


class _shaken_variables:
    """Shakes a reference's variables too, while the block lasts."""

    def __init__(self, reference: Any):
        self.reference = reference

    def __enter__(self) -> Any:
        return getattr(self.reference, "shake", lambda seed: None)

    def __exit__(self, *_: Any) -> None:
        getattr(self.reference, "restore", lambda: None)()
