"""``keras-mp doctor``: what it says, as text and as JSON, and its exit status."""

import json

import pytest

from keras_mp._backend import BACKENDS
from keras_mp.cli import main
from keras_mp.policies import diagnosis
from keras_mp.policies.hardware import Device


@pytest.fixture(autouse=True)
def no_switches(monkeypatch):
    for name in (*diagnosis.SWITCHES, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(diagnosis, "nvidia_driver", lambda: False)


def as_json(capsys, *arguments):
    status = main(["doctor", "--json", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_status"] == status
    return told


class TestAnotherDevice:
    def test_a_card_by_name(self, capsys):
        assert main(["doctor", "--device", "T4"]) == 0
        told = capsys.readouterr().out
        assert "T4 (compute capability 7.5)" in told
        assert "policy   mixed_float16: tensor cores compute float16" in told
        assert "published, not measured" in told

    def test_as_json(self, capsys):
        told = as_json(capsys, "--device", "A100 80GB")
        assert told["policy"] == "mixed_bfloat16"
        assert told["alternatives"] == ["mixed_float16", "float32"]
        assert told["peak_tflops"]["bfloat16"] == 312
        assert told["backend"] is None  # nobody asked

    def test_a_device_without_figures_shows_none(self, capsys):
        assert as_json(capsys, "--device", "8.6")["peak_tflops"] is None
        main(["doctor", "--device", "8.6"])
        assert "peaks" not in capsys.readouterr().out

    def test_an_unknown_name_is_wrong_use(self, capsys):
        assert main(["doctor", "--device", "A9000"]) == 2
        assert "keras-mp doctor: There is no device of that name" in capsys.readouterr().err


@pytest.mark.backend
class TestThisMachine:
    def test_the_backend_and_its_device(self, capsys, backend):
        told = as_json(capsys)
        assert told["backend"] == backend
        assert told["version"]
        assert set(told["other_backends"]) == set(BACKENDS) - {backend}
        assert told["device"]["vendor"] == "CPU"
        assert told["policy"] in ("float32", "mixed_bfloat16")
        assert told["precisions"]["float16"]["support"] == "emulated"
        assert told["troubles"] == []

    def test_a_switch_decides_and_its_cost_is_a_warning(self, capsys, monkeypatch):
        monkeypatch.setenv("KERAS_MP_POLICY", "16-mixed")
        told = as_json(capsys)
        assert (told["policy"], told["exit_status"]) == ("mixed_float16", 1)
        assert told["switches"] == {"KERAS_MP_POLICY": "16-mixed"}
        (trouble,) = told["troubles"]
        assert "convolutions take 6 times as long" in trouble["message"]

    def test_it_sets_nothing(self, capsys, monkeypatch):
        import keras

        monkeypatch.setenv("KERAS_MP_POLICY", "mixed_bfloat16")
        main(["doctor"])
        assert keras.config.dtype_policy().name == "float32"

    @pytest.mark.parametrize(
        ("switches", "says"),
        [
            ({"KERAS_MP_POLICY": "half"}, "Received: KERAS_MP_POLICY='half'"),
            (
                {"KERAS_MP_TF32": "1", "NVIDIA_TF32_OVERRIDE": "0"},
                "KERAS_MP_TF32=1 and NVIDIA_TF32_OVERRIDE=0 contradict each other",
            ),
            (
                {"KERAS_MP_POLICY": "fp32", "KERAS_FLOATX": "float64"},
                "KERAS_MP_POLICY=fp32 and KERAS_FLOATX=float64 contradict each other",
            ),
        ],
    )
    def test_switches_that_will_not_work_are_errors(self, capsys, monkeypatch, switches, says):
        for name, value in switches.items():
            monkeypatch.setenv(name, value)
        assert main(["doctor"]) == 2
        assert any(
            line.startswith("error ") and says in line
            for line in capsys.readouterr().out.splitlines()
        )

    def test_a_gpu_that_the_backend_does_not_use_is_a_warning(self, capsys, monkeypatch):
        monkeypatch.setattr(diagnosis, "nvidia_driver", lambda: True)
        told = as_json(capsys)
        assert told["exit_status"] == 1
        assert "There is an NVIDIA GPU" in told["troubles"][0]["message"]
        assert "with CUDA" in told["troubles"][0]["message"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        assert "CUDA_VISIBLE_DEVICES='-1'" in as_json(capsys)["troubles"][0]["message"]

    def test_a_gpu_that_it_uses_is_none(self, capsys, monkeypatch):
        from keras_mp.policies import detect

        monkeypatch.setattr(diagnosis, "nvidia_driver", lambda: True)
        h100 = Device("NVIDIA", "NVIDIA H100", compute_capability=(9, 0))
        monkeypatch.setattr(detect, "current_device", lambda: h100)
        told = as_json(capsys)
        assert told["device"]["compute_capability"] == "9.0"
        assert told["troubles"] == []


def test_a_backend_that_is_not_installed_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(diagnosis, "installed", lambda name: name == "torch")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    told = as_json(capsys)
    assert told["exit_status"] == 2
    assert "pip install 'keras-mp[jax]'" in told["troubles"][0]["message"]
    assert (told["device"], told["policy"]) == (None, None)


def test_a_backend_that_is_not_ours_is_an_error(capsys, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "openvino")
    assert main(["doctor"]) == 2
    assert "keras-mp works on torch, tensorflow, jax" in capsys.readouterr().out
