"""A trial's JSON: what is written is read again, and what is no trial is refused."""

import json
import math

import pytest

from keras_mp.bench import Trial
from keras_mp.bench.advice import advise
from keras_mp.bench.capacity import fit_line
from keras_mp.bench.picture import as_svg
from keras_mp.bench.results import Split, Spread, Variant


def made(**changes) -> Trial:
    points = [(8, 1800), (16, 2600), (32, 4200)]
    variants = [
        Variant(
            "float32",
            "float32",
            samples_per_s=[100.0, 102.0],
            rate=Spread(101.0, 100.5, 101.5),
            losses=[2.0, 1.0],
            split=Split(0.001, 0.09, 0.005, 0.004),
            memory=fit_line("allocator peak", points, 10**6),
            support="fast",
        ),
        Variant(
            "planned",
            "mixed_bfloat16",
            samples_per_s=[200.0, 204.0],
            rate=Spread(202.0, 201.0, 203.0),
            speedup=Spread(2.0, 1.99, 2.01),
            losses=[2.0, math.nan],
            memory_unknown="nobody tells",
            skipped=1,
            support="fast",
            float32_layers=["head"],
        ),
        Variant("mixed_float16", "mixed_float16", error="out of memory"),
    ]
    known = {
        "model": "net <&>",
        "backend": "torch",
        "versions": {"keras": "3.15.1"},
        "device": "a device",
        "threads": None,
        "parameters": 1234,
        "batch_size": 16,
        "steps": 10,
        "rounds": 2,
        "data": "synthetic",
        "notes": ["a note"],
        "variants": variants,
        "advice": advise(variants, 16),
    }
    return Trial(**(known | changes))


def test_json_is_read_again(tmp_path):
    trial = made()
    path = tmp_path / "trial.json"
    path.write_text(trial.to_json())
    again = Trial.read(path)
    assert math.isnan(again["planned"].losses[1])
    # NaN is equal to nothing: the texts are compared.
    assert again.to_json() == trial.to_json()
    assert again["float32"] == trial["float32"]
    assert again["float32"].memory.at(64) == 1000 + 64 * 100
    assert "planned" in again and "mixed_bfloat16" not in again


def test_no_bare_nan_is_written():
    assert json.loads(made().to_json(), parse_constant=pytest.fail)["variants"][1]["losses"] == [
        2.0,
        "nan",
    ]


def test_unknown_keys_of_a_later_version_are_left_alone():
    data = json.loads(made().to_json())
    data["weather"] = data["variants"][0]["mood"] = data["variants"][0]["memory"]["smell"] = 1
    assert Trial.from_json(json.dumps(data)).to_json() == made().to_json()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data | {"kind": "plan"}, "This is no trial"),
        (lambda data: data | {"format": 2}, "Expected 1. Received: format=2"),
        (lambda data: data | {"variants": [{}]}, "incomplete"),
        (lambda data: data | {"variants": [{"name": "x", "rate": [1, 2]}]}, "incomplete"),
        (lambda data: {k: v for k, v in data.items() if k != "advice"}, "incomplete"),
        (lambda data: [1], "This is no trial"),
    ],
)
def test_what_is_no_trial_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        Trial.from_json(json.dumps(change(json.loads(made().to_json()))))


def test_no_json_is_refused():
    with pytest.raises(ValueError, match="no JSON"):
        Trial.from_json("{")


def test_a_file_is_named_whatever_is_in_it(tmp_path):
    path = tmp_path / "trial.json"
    for content in (b"", b"\xff\xfe\x00", b"{}"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"trial\.json: This is no"):
            Trial.read(path)
    path.write_text(made().to_json(), encoding="utf-8-sig")  # with a mark of byte order
    assert Trial.read(path).to_json() == made().to_json()


def test_the_text_shows_every_variant():
    text = str(made())
    assert "2.00 (1.99–2.01)" in text
    assert "mixed_float16  out of memory" in text
    assert "note: a note" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_picture_is_valid_and_says_the_figures():
    import xml.etree.ElementTree as ET

    picture = as_svg(made())
    root = ET.fromstring(picture)  # also that "net <&>" is escaped
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "net <&>: 1,234 parameters, batch 16" in texts
    assert "202 · 2.00×" in texts
    assert "allocator peak" in texts
    bars = [
        float(node.get("width"))
        for node in root.iter("{http://www.w3.org/2000/svg}rect")
        if node.get("fill") in ("#5f6b76", "#009e73") and node.get("height") == "18.0"
    ]
    assert bars[1] / bars[0] == pytest.approx(2.0, rel=0.01)
    assert all(width >= 0 for width in bars)


def test_a_picture_without_memory_and_losses_says_so():
    bare = Variant("float32", "float32", rate=Spread(1.0, 1.0, 1.0), losses=[math.nan])
    picture = as_svg(made(variants=[bare]))
    assert "unknown on this backend and device" in picture
    assert "no finite loss" in picture
    assert "not measured" in picture
