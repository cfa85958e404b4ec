"""The examples that write journals, as they stand, with few steps."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend

EXAMPLES = Path(__file__).parents[3] / "examples"
BACKEND = os.environ["KERAS_BACKEND"]
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="a loop for tensorflow")
torch_only = pytest.mark.skipif(BACKEND != "torch", reason="a loop for torch")


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


not_jax = pytest.mark.skipif(BACKEND == "jax", reason="written for torch and tensorflow")


def job_in(path):
    folder = RunsFolder(path)
    folder.poll(None)
    (job,) = folder.jobs
    return job


@not_jax
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


@tensorflow_only
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gradient_tape_loop(tmp_path, capsys):
    example("tensorflow_loop").main(["--runs", str(tmp_path), "--steps", "60"])
    job = job_in(tmp_path)
    assert (job.step, job.planned_steps, job.end.status) == (60, 60, "done")
    assert job.scale == 2.0**15 and job.latest.applied == 60 and job.policy == "mixed_float16"
    losses = job.series["loss"]
    assert losses[-1] < losses[0] and job.results["right"] > 0.5  # a tenth by chance
    assert f"right {job.results['right']:.3f}" in capsys.readouterr().out


@torch_only
def test_a_plain_torch_loop_with_accumulation(tmp_path):
    example("torch_loop").main(["--runs", str(tmp_path), "--steps", "60"])
    job = job_in(tmp_path)
    assert (job.step, job.end.status, job.skipped) == (60, "done", 0)
    assert job.scale == 2.0**16 and job.results["right"] > 0.5  # GradScaler's own beginning
    windows = job.series["samples_per_second"]
    assert np.isfinite(windows[1:]).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_resumed_job_goes_on_in_its_journal(tmp_path, capsys):
    for epochs in ("1", "2"):
        example("resume").main(["--runs", str(tmp_path), "--epochs", epochs])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("steps")]
    job = job_in(tmp_path)
    # 1,797 digits in batches of 64: 29 an epoch, of which each is a step of the journal.
    assert said == ["steps 29", "steps 58"]
    assert (job.step, job.planned_steps, job.resumed, job.end.status) == (58, 58, 1, "done")
    assert [int(e) for e in job.epochs["step"]] == [0, 1]
    assert list(np.diff(job.series["step"]) > 0) == [True] * (len(job.series) - 1)
    assert job.series["loss"][-1] < job.series["loss"][0]


@not_jax
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_custom_train_step(tmp_path):
    example("custom_train_step").main(["--runs", str(tmp_path), "--epochs", "3"])
    job = job_in(tmp_path)
    assert (job.step, job.planned_steps, job.end.status) == (72, 72, "done")
    assert job.scale == 2.0**15 and job.latest.applied == 72 and job.results["right"] > 0.6
    assert job.latest.metrics["right"] > 0.5 and np.isfinite(job.series["loss"]).all()


@torch_only
def test_ranks_join_under_one_run(tmp_path):
    """Real processes, each with its own file; the samples of all of them are the job's."""
    command = [sys.executable, str(EXAMPLES / "ranks.py"), "--runs", str(tmp_path)]
    ended = subprocess.run([*command, "--steps", "12"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert sorted(p.name for p in (tmp_path / "ranks").iterdir() if p.name[0] != ".") == [
        "events-0.jsonl", "events-1.jsonl", "meta-1.json", "meta.json"]  # fmt: skip
    job = job_in(tmp_path)
    assert sorted(job.ranks) == [0, 1] and job.meta.world_size == 2
    assert job.ranks[0].pid != job.ranks[1].pid
    assert job.meta.backend == "torch" and "keras" not in job.meta.versions  # nobody loaded it
    assert [job.ranks[n].step for n in (0, 1)] == [12, 12] and job.end.status == "done"
    own = job.series["samples_per_second"]
    assert job.samples_per_second > np.nanmedian(own[-5:])  # and the other rank's on top
