"""Every public function of ``keras.ops`` on half-precision tensors, against float32 ones."""

import pytest
from keras import ops
from sweep.backends import BACKEND
from sweep.known import BF16, F16, surprises, unused
from sweep.known_ops import KNOWN_OPS
from sweep.op_cases import NOT_OPS, OPS
from sweep.sweeping import FunctionSubject, failures

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # overflows are what is looked for
    pytest.mark.skipif(BACKEND == "jax", reason="a compilation a function: minutes"),
]

CASES = {
    f"{name}-{case.label}" if case.label else name: case
    for name, cases in OPS.items()
    for case in cases
}


def test_every_public_function_has_a_case_or_a_reason_why_not():
    public = {name for name in dir(ops) if name[0] != "_"}
    public |= {f"image.{name}" for name in dir(ops.image) if name[0] != "_"}
    assert sorted(public - set(OPS) - set(NOT_OPS)) == []
    assert sorted((set(OPS) | set(NOT_OPS)) - public) == []


def test_what_is_known_is_about_cases_that_exist():
    assert unused(KNOWN_OPS, set(CASES)) == []


@pytest.mark.parametrize("name", CASES)
def test_op(name):
    case = CASES[name]
    subjects = {F16: FunctionSubject(case, "float16"), BF16: FunctionSubject(case, "bfloat16")}
    halves = {F16: "float16", BF16: "bfloat16"}
    wrong = failures(case, subjects, FunctionSubject(case, None), halves)
    assert surprises(KNOWN_OPS, name, BACKEND, wrong) == []
