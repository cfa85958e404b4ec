"""Run: a loop of one's own, with numbers or with tensors of the backend."""

import logging
import os
import time

import numpy as np
import pytest

from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

pytestmark = pytest.mark.backend


@pytest.fixture
def run_of(tmp_path):
    import keras_mp

    return lambda **kwargs: keras_mp.Run(tmp_path, **{"name": "job", **kwargs})


@pytest.fixture
def only_job(tmp_path):
    def job():
        folder = RunsFolder(tmp_path)
        folder.poll(None)
        (found,) = folder.jobs
        return found

    return job


def tensor(value):
    from keras import ops

    return ops.convert_to_tensor(np.float32(value))


@pytest.mark.parametrize("kind", [float, tensor])
@pytest.mark.parametrize("every", [1, 4, 1000])
def test_what_the_loop_says_is_in_the_journal(run_of, only_job, kind, every):
    with run_of(every=every, planned_steps=20) as run:
        for i in range(1, 11):
            run.step(loss=kind(i), samples=8, tokens=80, epoch=i // 6, metrics={"acc": kind(i / 2)})
    job = only_job()
    assert (job.step, job.epoch, job.planned_steps, job.end.status) == (10, 1, 20, "done")
    steps = np.diff(job.series["step"], prepend=0)
    assert np.sum(steps * job.series["loss"]) == pytest.approx(55)  # each window's mean
    assert job.latest.metrics == {"acc": 5.0}
    assert job.scale is None and job.skipped is None


def test_a_loss_that_is_not_finite_spoils_no_window(run_of, only_job):
    with run_of(every=3) as run:
        for value in (1.0, 2.0, float("nan"), 4.0, float("nan"), float("nan")):
            run.step(loss=value)
        run.step(loss=tensor(float("inf")))
    losses = only_job().series["loss"]
    assert list(losses[:2]) == [1.0, 3.0] or losses[0] == 1.0  # the first step is told alone
    assert losses[-1] == np.inf and only_job().nan_step is not None


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [(ValueError("boom\nsecond line"), "failed", "ValueError: boom"),
     (KeyboardInterrupt(), "stopped", "interrupted")],
)  # fmt: skip
def test_leaving_with_an_exception_says_so_and_lets_it_pass(
    run_of, only_job, error, status, reason
):
    with pytest.raises(type(error)), run_of() as run:
        run.step(loss=1.0)
        raise error
    job = only_job()
    assert (job.end.status, job.end.reason, job.step) == (status, reason, 1)


def test_resumed_run_appends_and_goes_on_from_its_step(run_of, only_job):
    for first in (0, 5):
        with run_of(initial_step=first, every=1) as run:
            for i in range(first + 1, first + 6):
                run.step(loss=i)
    job = only_job()
    assert list(job.series["step"]) == list(range(1, 11)) and job.resumed == 1


def test_result_after_the_block(run_of, only_job):
    with run_of() as run:
        run.step(loss=1.0)
    run.result(hits=0.7)
    job = only_job()
    assert job.results == {"hits": 0.7} and job.end.status == "done"


def test_another_scaler_s_numbers_can_be_passed_in(run_of, only_job):
    with run_of(every=1) as run:
        run.step(loss=1.0, scale=65536.0, skipped=0)
        run.step(loss=1.0, scale=tensor(32768.0), skipped=tensor(1))
    job = only_job()
    assert (job.scale, job.skipped, job.skipped_share) == (32768.0, 1, 0.5)


def test_without_a_block(run_of, only_job):
    run = run_of()
    run.step(loss=1.0)
    run.end()
    run.end()
    assert only_job().end.status == "done"
    with pytest.raises(ValueError, match=r"Received: status='perhaps'"):
        run.end("perhaps")


def test_trouble_with_the_disk_raises_nothing(tmp_path, caplog):
    import keras_mp

    (tmp_path / "runs").write_text("a file")
    with caplog.at_level(logging.WARNING, "keras_mp"), keras_mp.Run(tmp_path / "runs") as run:
        for i in range(10):
            run.step(loss=i)
    assert len(caplog.records) == 1


def test_a_loss_that_is_no_number_is_said_once(run_of, only_job, caplog):
    with caplog.at_level(logging.WARNING, "keras_mp"), run_of(every=2) as run:
        for _ in range(10):
            run.step(loss="high", samples=1)
    assert len(caplog.records) == 1
    assert only_job().step == 10


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "torch", reason="only torch has such graphs")
def test_a_torch_loss_lets_go_of_its_graph(run_of):
    import gc
    import weakref

    import torch

    weight = torch.ones(3, requires_grad=True)
    with run_of(every=1000) as run:
        activations = weight * 2
        kept = weakref.ref(activations)
        run.step(loss=(activations**2).sum())
        del activations
        gc.collect()
        assert kept() is None


def test_the_optimizer_s_skips_are_told(run_of, only_job):
    """A loop on the optimizer's public apply, as every custom loop ends."""
    import keras

    import keras_mp

    variable = keras.Variable(np.ones((2, 2), "float32"), name="kernel")
    optimizer = keras_mp.LossScaleOptimizer("sgd", initial_scale=256.0)
    optimizer.build([variable])
    bad = {3, 4, 9}
    with run_of(optimizer=optimizer, every=5) as run:
        for step in range(1, 13):
            gradient = np.full((2, 2), np.inf if step in bad else 1.0, "float32")
            loss = optimizer.scale_loss(tensor(1.0))
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
            run.step(loss=loss, samples=2)
    job = only_job()
    assert [o.step for o in job.overflows] == sorted(bad)
    assert (job.step, job.skipped, job.latest.applied, job.scale) == (12, 3, 9, 32.0)


def test_several_optimizers_are_told_apart(run_of, only_job):
    import keras

    import keras_mp

    bad = {"first": {4}, "second": {3, 4, 9}}
    variables = {name: keras.Variable(np.ones(2, "float32"), name=name) for name in bad}
    optimizers = {
        name: keras_mp.LossScaleOptimizer("sgd", initial_scale=2.0 ** (8 + i))
        for i, name in enumerate(bad)
    }
    for name, optimizer in optimizers.items():
        optimizer.build([variables[name]])
    with run_of(optimizer=optimizers, every=5) as run:
        for step in range(1, 13):
            for name, optimizer in optimizers.items():
                optimizer.scale_loss(tensor(1.0))
                gradient = np.full(2, np.inf if step in bad[name] else 1.0, "float32")
                optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variables[name]])
            run.step(loss=1.0)
    job = only_job()
    told = [(o.step, o.optimizer) for o in job.overflows]
    assert told == [(3, "second"), (4, None), (4, "second"), (9, "second")]
    assert (job.step, job.skipped, job.latest.applied) == (12, 4, 20)
    assert (job.scale, job.latest.metrics["scale:second"]) == (128.0, 64.0)
    assert set(job.scales["scale"]) == {256.0, 128.0}  # drawn: the first one's alone


def test_the_wait_for_batches_of_a_loop_of_one_s_own(run_of, only_job, tmp_path):
    pause = 0.02  # sleep() takes at least so long

    def source(wait):
        for i in range(10):
            time.sleep(wait)
            yield i

    with run_of(every=3) as run:
        for i in run.batches(source(pause)):
            run.step(loss=float(i))
    windows = [x for x in JournalFile(tmp_path / "job/events-0.jsonl").read() if x.kind == "step"]
    assert [w.step for w in windows][-1] == 10
    assert sum(w.input_wait for w in windows) >= 9 * pause and 0 < only_job().input_share <= 1
    with run_of(name="works", every=3) as run:
        for i in run.batches(source(0.0)):
            time.sleep(pause)
            run.step(loss=float(i))
    windows = [x for x in JournalFile(tmp_path / "works/events-0.jsonl").read() if x.kind == "step"]
    assert sum(w.seconds - w.input_wait for w in windows) >= 10 * pause
    with run_of(name="unknown") as run:
        run.step(loss=1.0)
    windows = JournalFile(tmp_path / "unknown/events-0.jsonl").read()
    assert all(w.input_wait is None for w in windows if w.kind == "step")
