"""``keras_mp.bench.trial`` and ``keras-mp bench``, end to end: processes, JSON, picture, errors."""

import io
import json
import math
import subprocess

import keras
import numpy as np
import pytest

import keras_mp.bench
from keras_mp.bench import Trial
from keras_mp.bench.processes import WorkerFailed, WorkerProcess
from keras_mp.bench.progress import ProgressBar
from keras_mp.cli import main

pytestmark = pytest.mark.backend

QUICK = {"rounds": 2, "seconds": 0.01, "loss_steps": 4}


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def trial(told):
    return keras_mp.bench.trial(
        "helpers.bench_models:net",
        "helpers.bench_models:data",
        variants=["planned", "float32"],
        memory=10**9,
        progress=lambda stage, done: told.append((stage, done)),
        **QUICK,
    )


class TestTrial:
    def test_it_has_every_figure_of_every_variant(self, trial, backend):
        assert [v.name for v in trial.variants] == ["float32", "planned"]
        assert trial.backend == backend and trial.data == "helpers.bench_models:data"
        assert trial.parameters == 24 * 32 + 32 + 32 * 10 + 10
        for variant in trial.variants:
            assert variant.error is None
            assert len(variant.samples_per_s) == 2 and min(variant.samples_per_s) > 0
            assert variant.rate.low <= variant.rate.median <= variant.rate.high
            assert len(variant.losses) == 4 and all(map(math.isfinite, variant.losses))
            step = np.median([32 / rate for rate in variant.samples_per_s])
            assert variant.split.step == pytest.approx(step)

    def test_speed_is_compared_round_by_round(self, trial):
        assert trial["float32"].speedup is None
        ratios = np.array(trial["planned"].samples_per_s) / trial["float32"].samples_per_s
        assert trial["planned"].speedup.median == pytest.approx(np.median(ratios))

    def test_memory_is_measured_or_said_to_be_unknown(self, trial, backend):
        for variant in trial.variants:
            if backend == "tensorflow":
                assert variant.memory is None and "does not tell" in variant.memory_unknown
                continue
            assert variant.memory.what == "parameters + slots + saved bytes"
            assert variant.memory.budget == 10**9
            largest = variant.memory.largest_batch
            assert variant.memory.at(largest) <= 0.9e9 < variant.memory.at(largest + 8)

    def test_the_plan_is_in_it(self, trial):
        assert trial["planned"].policy in ("mixed_bfloat16", "mixed_float16")
        assert "head" in trial["planned"].float32_layers

    def test_it_reads_back(self, trial, tmp_path):
        path = tmp_path / "trial.json"
        path.write_text(trial.to_json())
        assert Trial.read(path) == trial

    def test_progress_goes_from_0_to_1(self, trial, told):
        shares = [done for _, done in told]
        assert shares == sorted(shares) and (shares[0], shares[-1]) == (0, 1)
        assert any("round 2 of 2" in stage for stage, _ in told)


class TestWrongUse:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"variants": ["float33"]}, r"Received: variants=\['float33'\]"),
            ({"variants": []}, "`variants`"),
            ({"rounds": 0}, "rounds=0"),
            ({"batch_size": 0}, "batch_size=0"),
            ({"seconds": 0.0}, "seconds=0.0"),
            ({"headroom": 1.0}, "headroom=1.0"),
            ({"memory": -1}, "memory=-1"),
            ({"batch_size": 2.5}, "whole number.*batch_size=2.5"),
            ({"rounds": "3"}, "rounds='3'"),
            ({"variants": "float33"}, r"Received: variants=\['float33'\]"),
        ],
    )
    def test_arguments(self, arguments, says):
        with pytest.raises(ValueError, match=says):
            keras_mp.bench.trial("helpers.bench_models:net", **arguments)

    def test_models_that_no_other_process_finds(self):
        with pytest.raises(ValueError, match="at the top of a module"):
            keras_mp.bench.trial(lambda: None)
        with pytest.raises(ValueError, match="is no file"):
            keras_mp.bench.trial("nowhere.keras")
        with pytest.raises(ValueError, match="Received: model=3"):
            keras_mp.bench.trial(3)

    def test_data_that_cannot_be_handed_over(self):
        with pytest.raises(ValueError, match="cannot read this data"):
            keras_mp.bench.trial("helpers.bench_models:net", data=iter([]))

    def test_a_folder_for_the_picture_that_is_not_there_is_said_before_the_trial(self, capsys):
        assert main(["bench", "m:f", "--svg", "no/such/folder/t.svg"]) == 2
        assert "--svg no/such/folder/t.svg" in capsys.readouterr().err

    def test_a_file_that_is_not_there(self, capsys):
        assert main(["bench", "nowhere.keras"]) == 2
        assert "keras-mp bench: Expected a .keras file" in capsys.readouterr().err

    @pytest.mark.slow
    def test_a_function_that_raises(self, capsys):
        assert main(["bench", "helpers.bench_models:explodes", "--variants", "float32"]) == 2
        err = capsys.readouterr().err
        assert "keras-mp bench: helpers.bench_models:explodes failed" in err
        assert "no model today" in err


class TestProcess:
    def test_a_backend_that_is_not_installed_is_told_with_the_fix(self, tmp_path, monkeypatch):
        # A package of the backend's name that cannot be imported stands first on the path.
        broken = 'raise ModuleNotFoundError("No module named \'jax\'", name="jax")'
        (tmp_path / "jax.py").write_text(broken)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        known = {"data": None, "variant": "float32", "policy": None, "batch": 8, "seed": 0}
        with (
            WorkerProcess("float32") as process,
            pytest.raises(WorkerFailed, match=r"'jax' .chosen by KERAS_BACKEND. is not installed"),
        ):
            process.ask("build", spec="m:f", classes=[], **known)

    def test_its_death_is_told(self):
        with WorkerProcess("float32") as process:
            process._process.kill()
            with pytest.raises(WorkerFailed, match="status -9: it was killed"):
                process.ask("build")

    def test_what_its_libraries_say_when_they_load_is_not_why(self, monkeypatch):
        said = "W0000 00:00:17.1 26789 port.cc:153] oneDNN is on"

        class Shell(WorkerProcess):
            def __init__(self, script):
                popen = subprocess.Popen
                with monkeypatch.context() as patched:
                    patched.setattr(
                        subprocess, "Popen", lambda _, **how: popen(["sh", "-c", script], **how)
                    )
                    super().__init__("float32")

        for script, words in (
            (f"echo '{said}' >&2; exit 9", r"ended with status 9$"),
            (f"echo 'no room' >&2; echo '{said}' >&2; exit 9", r"ended with status 9: no room$"),
        ):
            with Shell(script) as process, pytest.raises(WorkerFailed, match=words):
                process.answer()

    def test_an_interrupt_does_not_wait_for_what_it_is_at(self):
        process = WorkerProcess("float32")
        with pytest.raises(KeyboardInterrupt), process:
            raise KeyboardInterrupt
        assert process._process.poll() == -9

    def test_it_ends_with_its_block(self):
        with WorkerProcess("float32") as process:
            pass
        assert process._process.poll() is not None


@pytest.mark.slow
class TestCommand:
    def test_all_variants_with_json_and_picture(self, capsys, tmp_path):
        from helpers.bench_models import data, net

        model = net()
        x, y = data()
        model.fit(x, y, verbose=0)
        model.save(tmp_path / "net.keras")
        np.savez(tmp_path / "data.npz", x=x, y=y)
        picture = tmp_path / "trial.svg"
        arguments = ["--data", str(tmp_path / "data.npz"), "--svg", str(picture), "--json"]
        short = ["--rounds", "2", "--seconds", "0.01", "--loss-steps", "3", "--memory", "2GB"]
        status = main(["bench", str(tmp_path / "net.keras"), *arguments, *short])
        out, err = capsys.readouterr()
        assert err == ""  # no terminal: no progress bar
        found = Trial.from_json(out)
        assert [v.name for v in found.variants] == [
            "float32",
            "mixed_bfloat16",
            "mixed_float16",
            "planned",
        ]
        assert all(v.error is None for v in found.variants)
        assert found.model == "net.keras" and found.data == "data.npz"
        held = {code for code, _ in found.advice.held_back}
        assert status == (1 if held & {"failed", "losses"} else 0)
        assert picture.read_text().startswith("<svg ")
        # The weights are the file's: each variant goes on from where it was saved.
        saved = model.evaluate(x, y, verbose=0)
        assert found["float32"].losses[0] == pytest.approx(saved, rel=0.5)

    def test_a_model_and_arrays_from_python(self):
        from helpers.bench_models import data, net

        found = keras_mp.bench.trial(net(), data(), variants=["float32"], **QUICK)
        assert found["float32"].error is None
        assert found.advice.switch_to == "float32"


def test_a_gigabyte_is_a_number():
    from keras_mp.cli import build_parser

    with pytest.raises(SystemExit):
        main(["bench", "m.keras", "--memory", "much"])
    for text, size in (("80", 80e9), ("80GB", 80e9), ("80 g", 80e9), ("80GiB", 80 * 2**30)):
        assert build_parser().parse_args(["bench", "m.keras", "--memory", text]).memory == size


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestProgressBar:
    def test_it_draws_one_line_and_clears_it(self):
        stream, now = Terminal(), [0.0]
        bar = ProgressBar(stream, clock=lambda: now[0])
        bar("float32: building", 0.0)
        now[0] = 10.0
        bar("float32: round 1 of 5", 0.25)
        line = stream.getvalue().split("\r")[-1]
        assert line.startswith("[######..................]  25%  float32: round 1 of 5  about 30 s")
        bar.close()
        assert stream.getvalue().endswith("\r") and "\n" not in stream.getvalue()

    def test_without_a_terminal_it_says_nothing(self):
        stream = io.StringIO()
        bar = ProgressBar(stream)
        bar("float32: building", 0.5)
        bar.close()
        assert stream.getvalue() == ""


def test_the_schema_in_the_docstring_is_what_is_written(trial):
    """Each key of the JSON is named in ``keras_mp.bench.trial``'s description of it."""
    import sys

    from keras_mp.bench import trial as _  # noqa: F401 - the function hides its module

    described = sys.modules["keras_mp.bench.trial"].__doc__

    def keys(value):
        if isinstance(value, dict):
            for key, item in value.items():
                yield key
                if key != "versions":
                    yield from keys(item)
        elif isinstance(value, list):
            for item in value:
                yield from keys(item)

    missing = {key for key in keys(json.loads(trial.to_json())) if f'"{key}"' not in described}
    assert not missing
    assert keras.version() in trial.to_json()
