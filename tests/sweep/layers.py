"""One layer under every policy and plan, against itself in float32."""

from sweep.cases import Case
from sweep.known import BF16, F16, PLAN_BF16, PLAN_F16
from sweep.models import ModelSubject
from sweep.sweeping import failures

# Name -> policy, whether a plan puts it on, half format.
SUBJECTS = {
    F16: ("mixed_float16", False, "float16"),
    BF16: ("mixed_bfloat16", False, "bfloat16"),
    PLAN_F16: ("mixed_float16", True, "float16"),
    PLAN_BF16: ("mixed_bfloat16", True, "bfloat16"),
}


def wrong_layers(case: Case) -> dict[str, dict[str, str]]:
    """Policy -> magnitude -> what is wrong, in words; policies without a fault have no entry."""
    reference = ModelSubject(case, "float32")
    subjects, wrong = {}, {}
    for name, (policy, planned, _) in SUBJECTS.items():
        try:
            subjects[name] = ModelSubject(case, policy, planned, like=reference)
        except Exception as error:  # a layer that cannot be built is what the sweep looks for
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            wrong[name] = dict.fromkeys(case.magnitudes, told)
    # A plan that changes nothing, or everything to float32, need not be computed again.
    same = {
        plan: policy
        for plan, policy in ((PLAN_F16, F16), (PLAN_BF16, BF16))
        if {plan, policy} <= set(subjects) and subjects[plan].computes == subjects[policy].computes
    }
    asked = {
        name: subject
        for name, subject in subjects.items()
        if name not in same and subject.computes != reference.computes
    }
    halves = {name: SUBJECTS[name][2] for name in asked}
    wrong |= failures(case, asked, reference, halves)
    wrong |= {plan: wrong.get(policy, {}) for plan, policy in same.items()}
    return {name: told for name, told in wrong.items() if told}
