"""Which variant a trial recommends, and what it says holds the gain back."""

import math

import pytest

from keras_mp.bench.advice import advise, losses_agree, most_by_amdahl
from keras_mp.bench.capacity import fit_line
from keras_mp.bench.results import Split, Spread, Variant

FALLING = [2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6]
BALANCED = Split(input=0.001, compute=0.09, optimizer=0.005, other=0.004)


def memory(slope, fixed=1000):
    return fit_line("allocator peak", [(b, fixed + slope * b) for b in (8, 16, 32)], 100_000)


def variant(name, times=None, *, split=BALANCED, losses=FALLING, slope=100, **more):
    up = None if times is None else Spread(times, times - 0.02, times + 0.02)
    rate = Spread(100.0 * (times or 1), 99.0 * (times or 1), 101.0 * (times or 1))
    known = {"policy": name, "support": "fast", "memory": memory(slope)} | more
    return Variant(name, rate=rate, speedup=up, losses=losses, split=split, **known)


def codes(advice):
    return [code for code, _ in advice.held_back]


BASE = variant("float32")


class TestChoice:
    def test_the_faster_one_wins(self):
        advice = advise([BASE, variant("mixed_bfloat16", 1.5), variant("mixed_float16", 2.0)], 32)
        assert advice.switch_to == "mixed_float16"
        assert advice.paragraph.startswith("Switch to mixed_float16: 2.00 times as fast")
        assert "100 → 200 samples/s" in advice.paragraph

    def test_of_two_as_fast_the_one_that_needs_less_care(self):
        for better in ("planned", "mixed_bfloat16"):
            rivals = [variant("mixed_float16", 2.0), variant(better, 1.97)]
            assert advise([BASE, *rivals], 32).switch_to == better

    def test_no_gain_is_no_reason_to_switch(self):
        advice = advise([BASE, variant("mixed_bfloat16", 1.0), variant("mixed_float16", 0.3)], 32)
        assert advice.switch_to == "float32"
        assert "Stay with float32: the best of the others, mixed_bfloat16" in advice.paragraph

    def test_a_gain_within_the_spread_is_none(self):
        unsure = variant("mixed_bfloat16", 1.2)
        unsure = Variant(**{**vars(unsure), "speedup": Spread(1.2, 0.9, 1.5)})
        assert advise([BASE, unsure], 32).switch_to == "float32"

    def test_a_gain_that_the_parts_of_a_step_deny_is_doubted(self):
        half = Split(input=0.0, compute=0.05, optimizer=0.0, other=0.05)  # twice as fast at most
        for times, doubted in ((1.9, False), (2.3, True)):
            advice = advise([variant("float32", split=half), variant("planned", times)], 32)
            assert ("busy" in codes(advice)) is doubted
            assert ("gained more than the split of a step allows" in advice.paragraph) is doubted

    def test_rounds_that_lie_far_apart_are_doubted(self):
        wide = Variant(**{**vars(variant("planned", 2.0)), "speedup": Spread(2.0, 1.5, 2.4)})
        advice = advise([BASE, wide], 32)
        assert "The rounds of planned differ by more than half (1.5× to 2.4×)" in advice.paragraph
        assert advice.held_back[-1][0] == "busy"

    def test_large_rates_are_written_out(self):
        base, fast = variant("float32"), variant("planned", 2.0)
        base = Variant(**{**vars(base), "rate": Spread(13374.2, 12380.0, 18970.0)})
        fast = Variant(**{**vars(fast), "rate": Spread(31544.0, 29961.0, 31740.0)})
        assert "13,374 → 31,544 samples/s" in advise([base, fast], 32).paragraph

    def test_memory_alone_can_be_a_reason(self):
        saving = variant("mixed_bfloat16", 1.0, slope=60)
        advice = advise([BASE, saving], 32)
        assert advice.switch_to == "mixed_bfloat16"
        assert "for its memory: it is as fast as float32 within the spread" in advice.paragraph
        assert advise([BASE, variant("mixed_bfloat16", 0.8, slope=60)], 32).switch_to == "float32"

    def test_who_learns_otherwise_is_not_recommended(self):
        bad = variant("mixed_float16", 3.0, losses=[2.0] * 8)
        nan = variant("mixed_bfloat16", 3.0, losses=[*FALLING[:4], *[math.nan] * 4])
        advice = advise([BASE, bad, nan], 32)
        assert advice.switch_to == "float32"
        assert codes(advice).count("losses") == 2
        assert "mixed_float16's loss is 2, float32's 0.6" in advice.paragraph

    def test_a_failure_is_told_and_does_not_stop_the_rest(self):
        failed = Variant("mixed_float16", "mixed_float16", error="out of memory")
        advice = advise([BASE, variant("planned", 1.5), failed], 32)
        assert advice.switch_to == "planned"
        assert "mixed_float16 failed: out of memory." in advice.paragraph

    def test_without_float32_there_is_nothing_to_compare(self):
        advice = advise([variant("mixed_bfloat16")], 32)
        assert (advice.switch_to, codes(advice)) == ("float32", ["no-baseline"])

    def test_what_runs_where_float32_does_not_is_recommended(self):
        failed = Variant("float32", "float32", error="out of memory")
        fast = Variant("planned", "mixed_bfloat16", rate=Spread(150.0, 149.0, 151.0))
        advice = advise([failed, variant("mixed_bfloat16"), fast], 32)
        assert (advice.switch_to, codes(advice)) == ("planned", ["no-baseline"])
        assert "no figures (out of memory). planned does run, at 150 samples/s" in advice.paragraph
        also = Variant("planned", "mixed_bfloat16", error="out of memory")
        assert advise([failed, also], 32).switch_to == "float32"


class TestHeldBack:
    @pytest.mark.parametrize(
        ("split", "code"),
        [
            (Split(input=0.05, compute=0.04, optimizer=0.005, other=0.005), "input-bound"),
            (Split(input=0.0, compute=0.06, optimizer=0.03, other=0.01), "optimizer-bound"),
            (Split(input=0.0, compute=0.05, optimizer=0.01, other=0.04), "overhead"),
        ],
    )
    def test_what_is_not_computing(self, split, code):
        assert codes(advise([BASE, variant("planned", 1.5, split=split)], 32)) == [code]
        assert codes(advise([BASE, variant("planned", 1.5)], 32)) == []

    def test_emulated_precision(self):
        slow = variant(
            "mixed_float16", 0.2, support="emulated", support_why="converted at each step"
        )
        advice = advise([BASE, slow], 32)
        assert codes(advice) == ["emulated"]
        assert "mixed_float16 is emulated here: converted at each step." in advice.paragraph

    def test_widths_off_the_multiples_of_8(self):
        rivals = [BASE, variant("planned", 1.5)]
        advice = advise(rivals, 30, [("head", "units", 1001)])
        assert codes(advice) == ["shapes", "batch"]
        assert "head units=1001" in advice.paragraph
        # A CPU has no tensor cores.
        assert codes(advise(rivals, 30, [("head", "units", 1001)], on_cpu=True)) == []


def test_amdahl():
    split = Split(input=0.01, compute=0.06, optimizer=0.02, other=0.01)
    assert most_by_amdahl(split) == pytest.approx(2.5)
    assert most_by_amdahl(Split(0, 1, 0, 0)) == math.inf
    text = advise([variant("float32", split=split), variant("planned", 1.5)], 32).paragraph
    assert "60% computing, 20% the optimizer" in text
    assert "2.5 times as fast at most" in text
    assert "in planned computing itself is 0.67 times as fast" in text


def test_largest_batches_are_in_the_words():
    text = advise([variant("float32", slope=100), variant("planned", 1.5, slope=50)], 32).paragraph
    assert "0.50 of it for each further sample" in text
    assert "from 888 to 1,776, with 10% left free" in text


def test_losses_agree_within_the_losses_own_scale():
    assert losses_agree(BASE, variant("planned", losses=[loss + 0.05 for loss in FALLING]))
    assert not losses_agree(BASE, variant("planned", losses=[loss + 0.08 for loss in FALLING]))
    assert losses_agree(variant("float32", losses=[math.nan] * 8), variant("planned"))
