"""``keras-mp probe`` on a model in a file."""

import json
import os

import numpy as np
import pytest

import keras_mp
from keras_mp.cli import main

pytestmark = [pytest.mark.backend]
if os.environ.get("KERAS_BACKEND") == "jax":
    pytestmark.append(pytest.mark.slow)


@pytest.fixture
def saved(tmp_path):
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="only")])
    model.compile(keras_mp.LossScaleOptimizer("sgd", scale=16.0), loss="mse")
    model.save(tmp_path / "m.keras")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)), rng.normal(size=(8, 3)) * 2.0**-20
    np.savez(tmp_path / "d.npz", x=x.astype("float32"), y=y.astype("float32"))
    np.save(tmp_path / "x.npy", x.astype("float32"))
    return tmp_path


def test_the_table_the_picture_and_json(saved, capsys):
    model, data, picture = saved / "m.keras", saved / "d.npz", saved / "p.svg"
    assert main(["probe", str(model), str(data), "--svg", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "only" in shown and "at loss scale 2⁴" in shown
    assert picture.read_text().startswith("<svg") and "only" in picture.read_text()
    assert main(["probe", str(model), str(data), "--scale", "1024", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scale"] == 1024.0 and told["loss"] > 0
    assert {row["tensor"] for row in told["rows"]} == {"activation", "gradient", "weight_gradient"}
    assert main(["probe", str(model), str(saved / "x.npy"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["tensor"] for row in told["rows"]} == {"activation"} and told["loss"] is None


def test_what_is_wrong_is_said(saved, capsys):
    model, data = str(saved / "m.keras"), str(saved / "d.npz")
    np.savez(saved / "empty.npz", z=np.ones(3))
    for arguments, said in (
        ([str(saved / "no.keras"), data], "which is no file"),
        ([model, str(saved / "no.npz")], "Expected an .npz or .npy file"),
        ([model, str(saved / "empty.npz")], "Expected an array x"),
        ([model, data, "--scale", "-1"], "Received: scale="),
        ([model, data, "--format", "float12"], "Received: fmt='float12'"),
        ([model, data, "--svg", str(saved / "no" / "p.svg")], "cannot write"),
    ):
        assert main(["probe", *arguments]) == 2
        assert said in capsys.readouterr().err
