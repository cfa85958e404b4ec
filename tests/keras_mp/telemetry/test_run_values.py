"""What a loop of one's own may hand to Run: numbers, tensors, and what is neither."""

import math

import numpy as np
import pytest

from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

pytestmark = pytest.mark.backend

NO_NUMBER = [1 + 2j, "hello", np.ones(2), 10**400, [1], {}, object()]


def run_of(path, **kwargs):
    import keras_mp

    return keras_mp.Run(path, **{"name": "job", "every": 1, **kwargs})


def windows(path):
    reader = JournalFile(path / "job/events-0.jsonl")
    steps = [x for x in reader.read() if x.kind == "step"]
    assert reader.corrupt == 0
    return steps


def test_one_value_that_is_no_number_spoils_no_other(tmp_path, caplog):
    with run_of(tmp_path) as run:
        for odd in [*NO_NUMBER, None]:
            run.step(loss=1.5, samples=4, epoch=2, metrics={"odd": odd, "acc": 0.5})
    told = windows(tmp_path)
    assert [w.step for w in told] == list(range(1, len(NO_NUMBER) + 2))
    assert all((w.loss, w.samples, w.epoch, w.metrics) == (1.5, 4, 2, {"acc": 0.5}) for w in told)
    # Once, with its name; of None there is nothing to say: it is not known yet.
    assert caplog.text.count("Received: odd=(1+2j)") == len(caplog.records) == 1


@pytest.mark.parametrize("name", ["loss", "samples", "tokens", "epoch", "scale", "skipped"])
def test_no_argument_of_a_step_can_stop_the_loop(tmp_path, caplog, name):
    with run_of(tmp_path) as run:
        for odd in NO_NUMBER:
            run.step(**{name: odd}, metrics={"acc": 0.5})
        run.step(**{name: np.float32(3)}, metrics={"acc": 0.5})
    told = windows(tmp_path)
    assert [getattr(w, name) for w in told] == [*[None] * len(NO_NUMBER), 3]
    assert all(w.metrics == {"acc": 0.5} for w in told)
    assert caplog.text.count(f"Received: {name}=") == len(caplog.records) == 1


def test_samples_and_tokens_may_be_on_the_device(tmp_path):
    """The tokens of a batch without its padding are a tensor's sum."""
    from keras import ops

    with run_of(tmp_path, every=2) as run:
        for _ in range(5):
            mask = ops.convert_to_tensor([[1, 1, 0], [1, 0, 0]])
            run.step(samples=ops.shape(mask)[0], tokens=ops.sum(mask), epoch=ops.max(mask))
    told = windows(tmp_path)
    assert (sum(w.samples for w in told), sum(w.tokens for w in told)) == (10, 15)
    assert told[-1].epoch == 1


def test_a_result_may_be_a_tensor_and_must_be_a_number(tmp_path):
    from keras import ops

    with run_of(tmp_path) as run:
        run.step()
        run.result(hits=ops.convert_to_tensor(0.75), lost=math.inf)
        with pytest.raises(ValueError, match=r"must be a number .* Received: hits='many'"):
            run.result(hits="many")
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    assert folder.jobs[0].results == {"hits": 0.75, "lost": math.inf}


def test_a_step_after_the_end_goes_on_from_there(tmp_path):
    run = run_of(tmp_path)
    with run:
        run.step(loss=1.0)
        run.step(loss=2.0)
    run.step(loss=3.0)
    run.end()
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    assert list(job.series["loss"]) == [1.0, 2.0, 3.0] and job.end.status == "done"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [({"optimizer": "adam"}, "an optimizer, or several in a dict"),
     ({"optimizer": [1, 2]}, "an optimizer, or several in a dict"),
     ({"policy": 16}, "a policy's name"), ({"planned_steps": -1}, "a number from 0 on"),
     ({"planned_steps": 1e5}, "a number from 0 on"), ({"initial_step": 2.5}, "a number from 0 on")],
)  # fmt: skip
def test_arguments_out_of_range(tmp_path, wrong, expected):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"`{name}` must be {expected}.* Received: {name}="):
        run_of(tmp_path, **wrong)
    with run_of(tmp_path) as run, pytest.raises(ValueError, match="`metrics` must be a dict"):
        run.step(metrics=[("acc", 1)])
