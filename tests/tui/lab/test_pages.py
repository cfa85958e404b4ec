"""What the pages compute: against NumPy's own formats, the state machine and the tables."""

import json
import math
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mp.bench.published import accuracies, rows
from keras_mp.numerics.formats import FORMATS, round_to
from keras_mp.numerics.histogram import shares
from keras_mp.scaling.presets import PRESETS
from keras_mp.telemetry.records import Numerics
from tui.drawing.raster import ASCII
from tui.lab.bits import BitsPage, neighbour, swallowed_from
from tui.lab.memory import MemoryPage
from tui.lab.numbers import parse, short
from tui.lab.ops import WORDS, OpsPage, layers_in
from tui.lab.recorded import demo_gradients, job_gradients, nets, overflows
from tui.lab.results import VIEWS, ResultsPage
from tui.lab.scale import ScalePage
from tui.lab.scaler import Scaler
from tui.lab.screen import in_ascii
from tui.lab.step import StepPage
from tui.lab.training_step import WEIGHT, Setting, add_up, take
from tui.look import Look

ROOT = Path(__file__).parents[3]
FLOAT16 = FORMATS["float16"]


def shown(page, look=None, width=78, height=21):
    """The page as the screen shows it at 80 x 24: everything must fit."""
    rows = page.rows(width, height, look or Look())
    lines = ["".join(piece for piece, _ in row) for row in rows]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width, max(lines, key=len)
    return "\n".join(lines)


def press(page, *keys):
    for key in keys:
        page.press(key)
    return page


# --- Bits


@given(st.floats(allow_nan=False, width=16), st.sampled_from((-1, 1)))
def test_a_neighbour_in_float16_is_numpys_nextafter(value, by):
    if math.isinf(value) and (value > 0) == (by > 0):
        assert neighbour(value, FLOAT16, by) == value
        return
    with np.errstate(over="ignore"):
        expected = np.nextafter(np.float16(value), np.float16(by * np.inf))
    assert neighbour(value, FLOAT16, by) == float(expected)


@given(st.floats(-60000, 60000))
def test_from_between_two_numbers_the_neighbour_is_the_nearer_end_on_that_side(value):
    above, below = neighbour(value, FLOAT16, 1), neighbour(value, FLOAT16, -1)
    assert below < value < above
    kept = float(np.float16(value))
    assert kept in (below, above) or kept == value


def test_float8_e4m3_ends_at_448_and_has_no_infinity():
    e4m3 = FORMATS["float8_e4m3"]
    assert neighbour(416.0, e4m3, 1) == 448.0
    assert neighbour(448.0, e4m3, 1) == 448.0
    assert neighbour(1e9, e4m3, -1) == 448.0


# Checked by hand: 1 + 2^-11 is half-way between 1 and its neighbour, and goes to the even one.
@pytest.mark.parametrize(
    ("name", "ratio"),
    [("float16", 2**11), ("bfloat16", 2**8), ("float32", 2**24), ("float8_e4m3", 2**4)],
)
def test_an_update_2048_times_smaller_than_a_weight_of_1_is_swallowed(name, ratio):
    f = FORMATS[name]
    assert swallowed_from(1.0, f) == ratio
    assert float(round_to(1.0 + 1.0 / ratio, f)) == 1.0
    assert float(round_to(1.0 + 2.0 / ratio, f)) > 1.0


def test_the_bits_page_shows_ieee_patterns_and_the_end_of_the_range():
    page = BitsPage()
    page.take("1/3")
    text = shown(page)
    # 0x3555 and 0x3EAAAAAB, as IEEE 754 has them
    assert "0 01101 0101010101" in text
    assert "0 01111101 01010101010101010101011" in text
    page.take("65520")
    text = shown(page)
    assert "overflow" in text and "inf" in text
    page.take("2^-25")
    assert "underflow" in shown(page)


def test_the_swallowed_addition_says_so_and_a_larger_update_moves():
    page = BitsPage()
    page.take("1")
    assert page.ratio == 2048
    assert "swallowed" in shown(page)
    assert "it moves" in shown(press(page, "left_square_bracket"))


@pytest.mark.parametrize(
    ("typed", "value"),
    [("0.1", 0.1), ("2^-24", 2.0**-24), ("2**10", 1024.0), ("-1/4", -0.25), ("3e-8", 3e-8)],
)
def test_numbers_are_read_as_people_type_them(typed, value):
    assert parse(typed) == value


@pytest.mark.parametrize("typed", ["", "one", "1/0", "2^", "__import__('os')", "2^99999"])
def test_what_is_no_number_is_refused_with_what_was_typed(typed):
    page = BitsPage()
    problem = page.take(typed)
    assert problem is not None and f"Received: {typed!r}" in problem
    assert page.value == 0.1


@pytest.mark.parametrize("typed", ["inf", "nan", "0", "-0.0", "1e308", "5e-324", "-7"])
def test_the_bits_page_shows_any_number(typed):
    page = BitsPage()
    assert page.take(typed) is None
    for _ in FORMATS:
        shown(press(page, "down"))
        for key in ("left", "right", "plus", "minus", "n", "x"):
            shown(press(page, key))


# --- Step


def test_each_technique_is_needed_in_float16():
    whole = take(WEIGHT, Setting())
    assert whole.error < 0.01
    without_masters = take(WEIGHT, Setting(masters=False))
    assert without_masters.moved == 0 and without_masters.summed == whole.summed  # swallowed
    without_scaling = take(WEIGHT, Setting(scaling=False))
    assert without_scaling.zeros > 0.99 and without_scaling.moved == 0
    without_sums = take(WEIGHT, Setting(float32_sums=False))
    assert 0 < without_sums.moved / without_sums.exact_move < 0.8  # the sum stopped growing


def test_bfloat16_needs_no_scaling_but_masters_and_float32_sums_even_more():
    half = {"format": "bfloat16"}
    assert take(WEIGHT, Setting(**half, scaling=False)).error < 0.01
    assert take(WEIGHT, Setting(**half, masters=False)).moved == 0
    bf16 = take(WEIGHT, Setting(**half, float32_sums=False))
    assert bf16.error > take(WEIGHT, Setting(float32_sums=False)).error


def test_a_scale_that_is_too_large_skips_the_step():
    result = take(WEIGHT, Setting(scale=2.0**40))
    assert not result.finite and result.new == result.stored


def test_the_exact_step_is_the_gradient_of_the_loss():
    """By central differences of the loss in float64."""
    from tui.lab.training_step import OUTPUTS, samples

    x, t = samples()

    def loss(w):
        return float(np.sum((w * x - t) ** 2) / OUTPUTS)

    slope = (loss(WEIGHT + 1e-3) - loss(WEIGHT - 1e-3)) / 2e-3
    result = take(WEIGHT, Setting(rate=0.1))
    assert result.exact_move == pytest.approx(-0.1 * slope, rel=1e-6)


@given(st.lists(st.floats(0, 1, width=16), min_size=1, max_size=50))
def test_a_sum_in_a_format_is_rounded_after_each_addition(terms):
    fmt = FORMATS["bfloat16"]
    expected = 0.0
    for term in round_to(terms, fmt).tolist():
        expected = float(round_to(expected + term, fmt))
    assert add_up(round_to(terms, fmt), fmt) == expected


def test_the_step_page_tells_what_goes_wrong():
    page = StepPage()
    text = shown(page)
    assert "with all three" in text and "right within" in text
    assert "swallowed" in text and "became zero" in text and "too small" in text
    assert "OFF" not in text
    assert "loss scaling OFF" in shown(press(page, "l"))


def test_the_stages_come_one_by_one_and_the_next_step_starts_from_the_new_weight():
    page = StepPage()
    press(page, "space")
    assert (page.steps, page.stage) == (2, 1)
    assert page.weight == take(WEIGHT, Setting()).new
    first = shown(page)
    assert "the step is taken" not in first and "moved by" not in first
    press(page, *["space"] * 7)
    assert "the step is taken" in shown(page)
    press(page, "backspace")
    assert "the step is taken" not in shown(page)
    assert shown(press(page, "0")) == shown(StepPage())


@pytest.mark.parametrize("key", ["m", "l", "s", "f", "up", "down", "left", "right"])
def test_the_step_page_fits_whatever_is_pressed(key):
    page = StepPage()
    for _ in range(8):
        shown(press(page, key))


# --- Scale


def test_the_demos_gradients_are_those_that_the_demo_loses():
    """61 % of all gradients are lost in float16, under a thousandth at 2^15: as the demo's hits."""
    whole = demo_gradients()[0]
    assert whole.histogram.total > 800_000
    assert shares(whole.histogram, "float16").lost > 0.5
    assert shares(whole.histogram, "float16", 2.0**15).lost < 0.01


def test_the_scale_page_shows_lost_kept_and_overflowing():
    page = ScalePage()
    lost = shares(page.source.histogram, "float16").lost
    assert f"lost {lost:.0%}".replace("%", " %") in shown(page)
    text = shown(press(page, *["right"] * 15))
    assert "times 2¹⁵" in text
    text = shown(press(page, *["right"] * 25))
    assert "Too large" in text and "overflow" in text


@pytest.mark.parametrize("format_presses", range(4))
def test_every_histogram_fits_the_page(format_presses):
    page = press(ScalePage(), *["f"] * format_presses)
    for _ in page.sources:
        shown(press(page, "down", "right"))


def test_a_jobs_recorded_numerics_come_first():
    records = [
        Numerics(step=5, time=0.0, layer="a", tensor="gradient", histogram={"-20": 3}, zeros=1),
        Numerics(step=9, time=1.0, layer="a", tensor="gradient", histogram={"-10": 4}, zeros=0),
        Numerics(
            step=9, time=1.0, layer="b", tensor="weight_gradient", variable="b/kernel",
            histogram={"-30": 6},
        ),
    ]  # fmt: skip
    sources = job_gradients("run-1", records)
    assert [s.title for s in sources] == [
        "all gradients",
        "gradient at a",
        "weight gradient of b/kernel",
    ]
    assert sources[1].histogram.exponents == {-10: 4}  # the newest
    assert sources[0].histogram.exponents == {-30: 6, -10: 4}
    page = ScalePage(sources)
    assert "run-1" in shown(page)
    assert len(page.sources) == 3 + len(demo_gradients())


@pytest.mark.parametrize("preset", PRESETS)
def test_any_preset_steps_through_the_recorded_overflows(preset):
    scaler = Scaler(overflows(), preset)
    scaler.go(10_000)
    limits = overflows().log2_limit
    assert len(scaler.taken) == len(limits) and scaler.over
    for taken, limit in zip(scaler.taken, limits, strict=True):
        assert taken.finite == (taken.scale <= limit)
    assert scaler.state.skipped == sum(not t.finite for t in scaler.taken)
    if preset == "paper":
        assert scaler.state.skipped == 0 and scaler.state.scale == 8.0
    else:
        assert scaler.state.skipped > 0


def test_the_recorded_limits_tell_what_the_recorded_run_skipped():
    """The limits come from float32 passes; the run itself was in float16. They must agree."""
    text = (resources.files("tui.lab") / "data" / "overflows.json").read_text()
    recorded = json.loads(text)["recorded"]
    limits = overflows().log2_limit
    scales, skipped = recorded["log2_scale"], set(recorded["skipped"])
    assert len(scales) == len(limits) and len(skipped) > 20
    told = [
        (scale > limit) == (step in skipped)
        for step, (scale, limit) in enumerate(zip(scales, limits, strict=True), start=1)
    ]
    assert sum(told) >= 0.99 * len(told)
    # And the same rule on the limits skips about as often as the run did.
    scaler = Scaler(overflows())
    scaler.restart("dynamic", recorded["growth_interval"])
    scaler.go(10_000)
    assert scaler.state.skipped == pytest.approx(len(skipped), abs=2)


def test_the_steps_of_the_scaler_page():
    page = press(ScalePage(), "d")
    assert "preset dynamic" in shown(page)
    press(page, "space")
    text = shown(page)
    assert "overflow" in text and "skipped, the scale is halved" in text
    at = len(page.scaler.taken)
    press(page, "right", "left", "left")
    assert len(page.scaler.taken) == at - 1
    assert "preset keras" in shown(press(page, "down"))
    assert len(page.scaler.taken) == 0
    assert "The recording ends here" in shown(press(page, "e"))
    press(page, "i", "e")
    assert page.scaler.config.growth_interval == 100
    for preset in PRESETS:
        page.scaler.restart(preset)
        shown(press(page, "space"))
        shown(press(page, "e"))


# --- Memory


def test_memory_follows_the_keys():
    page = MemoryPage()
    before = page.footprints()
    press(page, "right")
    after = page.footprints()
    for name in before:
        assert after[name].activations == pytest.approx(2 * before[name].activations, abs=2)
        assert after[name].weights == before[name].weights
    # Of mixed precision the weights are copies: those that were counted, not by arithmetic.
    assert before["mixed"].weights == page.net.casts_ours
    assert before["stock"].weights == page.net.casts_stock > 0
    assert before["paper"].weights == 2 * page.net.parameters
    press(page, "left", "plus")
    for name in before:
        assert page.footprints()[name].total == pytest.approx(2 * before[name].total, rel=1e-6)
    press(page, "o")
    assert page.footprints()["float32"].slots == page.footprints()["float32"].weights
    assert shown(press(page, "0", "o", "o")) == shown(MemoryPage())


def test_mixed_precision_keeps_what_was_measured():
    """Keras' batch norms stay in float32 inside, ours do not: under half is kept, not 3/4."""
    page = MemoryPage()
    assert "ResNet-50" in page.net.name
    of = {name: found.activations for name, found in page.footprints().items()}
    assert of["mixed"] == round(page.net.kept_ours * page.batch)
    assert of["paper"] == pytest.approx(of["float32"] / 2)
    assert of["mixed"] / of["float32"] < 0.45
    assert of["stock"] / of["float32"] > 0.7
    for net in nets():
        # Below a half where Keras' convolutions keep copies, in float32 too, and ours none.
        assert 0.2 * net.kept < net.kept_ours < net.kept
        # The plan leaves the demo's wide sigmoid in float32, for its small values' sake.
        assert net.kept_ours <= net.kept_stock < net.kept or net.name == "the demo's MLP"
        assert net.casts_ours == 0 < net.casts_stock <= 2 * net.parameters


def test_the_batches_that_fit_are_the_last_that_do():
    page = press(MemoryPage(), "down", "down")
    found = re.search(r"\((\d+) GB\): batch ([\d,]+) in float32, ([\d,]+) in mixed", shown(page))
    room = int(found[1]) * 0.9e9
    for name, batch in zip(("float32", "mixed"), found.groups()[1:], strict=True):
        one = page.footprints()[name]
        fixed, a_sample = one.total - one.activations, one.activations / page.batch
        assert fixed + int(batch.replace(",", "")) * a_sample <= room
        assert fixed + (int(batch.replace(",", "")) + 1) * a_sample > room


@pytest.mark.parametrize("number", range(len(nets())))
def test_every_net_fits_the_page(number):
    page = press(MemoryPage(), *["down"] * number)
    for key in ("right", "plus", "minus", "left", "c"):
        for _ in range(12):
            shown(press(page, key))


# --- Ops


def test_the_three_categories_of_the_paper_come_first():
    assert list(WORDS)[:3] == ["product", "reduction", "pointwise"]
    page = OpsPage()
    text = shown(page)
    assert "Dense" in text and "Conv2D" in text and "MultiHeadAttention" in text
    text = shown(press(page, "down"))
    assert "LayerNormalization*" in text and "float32 inside whatever" in text
    for _ in WORDS:
        shown(press(page, "down"))


@pytest.mark.backend
def test_every_layer_on_the_page_is_keras_own_and_of_that_category():
    import keras

    from keras_mp.policies.categories import category_of

    for category in WORDS:
        for name in layers_in(category):
            found = getattr(keras.layers, name, None) or getattr(keras, name)
            assert category_of(found) == category, name


# --- Results


def test_every_published_figure_can_be_read():
    page = ResultsPage()
    seen = ""
    for _ in VIEWS:
        seen += shown(page)
        for _ in range(12):
            seen += shown(press(page, "pagedown"))
        press(page, "right")
    for row in rows():
        assert f"{row.speedup:.2f}×" in seen, row
    for one in accuracies():
        assert f"{one.baseline:g}" in seen and f"{one.mixed:g}" in seen, one
    assert "2015" in seen and "2209.05433" in seen


def test_our_own_figures_are_those_of_the_papers_benchmark():
    kept = json.loads((ROOT / "docs" / "paper.json").read_text())
    page = ResultsPage()
    page.view = "ours"
    seen = shown(page)
    for _ in range(12):
        seen += shown(press(page, "pagedown"))
    hits = [
        run["metrics"]["hits"]
        for run in kept["runs"]
        if (run["task"], run["variant"]) == ("heat_map", "float16, unscaled")
    ]
    assert len(hits) == 3
    assert re.search(rf"float16, unscaled +\S+ +{np.mean(hits):.4f}", seen)
    for task, family in kept["families"].items():
        found = {r["variant"] for r in kept["runs"] if r["task"] == task}
        assert found, task
        better = "more" if family["more_is_better"] else "less"
        assert re.search(rf"{re.escape(family['name'])} +{family['metric']}, {better} is", seen)
        assert all(variant in seen for variant in found)
    for claim in kept["claims"]:
        assert claim["claim"].split(":")[0][:40] in seen
        assert claim["verdict"] in seen


def test_where_the_benchmark_has_not_run_there_are_no_figures(monkeypatch):
    monkeypatch.setattr("tui.lab.results.paper_runs", lambda: None)
    page = ResultsPage()
    page.view = "ours"
    assert "there are no figures" in shown(page)


def test_scrolling_stops_at_both_ends():
    page = ResultsPage()
    first = shown(page)
    assert shown(press(page, "up")) == first
    last = shown(press(page, *["pagedown"] * 50))
    assert shown(press(page, "down")) == last != first


def test_a_short_number_is_a_power_of_two_where_that_is_shorter():
    assert short(2.0**-24) == "2⁻²⁴"
    assert short(0.5) == "0.5"
    assert short(3e-8) == "3.00e-8"


# --- ASCII


@pytest.mark.parametrize(
    ("page_class", "keys"),
    [
        (BitsPage, "n"),
        (StepPage, ""),
        (ScalePage, ""),
        (ScalePage, "dei"),
        (MemoryPage, "-"),
        (OpsPage, ""),
        (ResultsPage, ""),
    ],
)
def test_without_unicode_every_sign_has_another(page_class, keys):
    look = Look(unicode=False, charset=ASCII)
    page = press(page_class(), *["minus" if key == "-" else key for key in keys])
    drawn = "\n".join(in_ascii(line) for line in shown(page, look).splitlines())
    assert drawn.isascii()
    assert "?" not in drawn  # which is what stands for a sign that nobody thought of
