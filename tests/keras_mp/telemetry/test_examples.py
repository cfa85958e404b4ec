"""The examples that write journals, as they stand, with few steps."""

import importlib.util
import os
from pathlib import Path

import pytest

from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    os.environ["KERAS_BACKEND"] == "jax", reason="the loop is written for torch and tensorflow"
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # float16 on a CPU is slow, as is said
def test_gan_has_both_optimizers_in_one_journal(tmp_path, capsys):
    example("gan").main(["--runs", str(tmp_path), "--steps", "20", "--batch-size", "16"])
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    assert (job.step, job.planned_steps, job.end.status) == (20, 20, "done")
    assert job.scale == job.latest.metrics["scale:discriminator"] == 2.0**15
    assert job.latest.applied == 40 and job.skipped == 0
    assert job.meta.optimizer == "Adam, Adam" and job.meta.policy == "mixed_float16"
    assert job.results["near_ring"] >= 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("near the ring 0.")
