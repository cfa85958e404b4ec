"""Other programs' jobs on another machine: their event files come through the relay."""

import subprocess
import sys
import time

import pytest

from keras_mp.telemetry.event_proto import scalars
from keras_mp.telemetry.relay import Relay, is_event_file
from keras_mp.telemetry.tfrecord import frame
from tui.remote import RemoteRuns

NAME = "events.out.tfevents.1700000000.elsewhere.17.0"


def say(path, steps, tag="loss"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        for step in steps:
            file.write(frame(scalars(1.7e9 + step, step, {tag: 1.0 / step})))


@pytest.fixture
def far(tmp_path):
    """A relay of this machine's, without ssh."""
    runs = tmp_path / "runs"
    runs.mkdir()
    opened = []

    def start():
        command = [sys.executable, "-m", "keras_mp.cli", "relay", str(runs), "--since", "-"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)

    def follow():
        opened.append(RemoteRuns("far", str(runs), start))
        return opened[-1]

    yield runs, follow
    for each in opened:
        each.close()


def until(remote, good):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        remote.poll(None)
        if good(remote.jobs):
            return remote.jobs
        time.sleep(0.1)
    raise AssertionError(f"not seen in a minute: {remote.jobs}, {remote.error}")


def test_event_files_of_another_machine_are_followed(far):
    runs, follow = far
    say(runs / "theirs" / "train" / NAME, range(1, 6))
    say(runs / "theirs" / "validation" / NAME, [5], "val_loss")
    remote = follow()
    (job,) = until(remote, lambda jobs: jobs and jobs[0].step == 5)
    assert (job.name, job.loss) == ("theirs", pytest.approx(0.2))
    assert job.latest.metrics["validation/val_loss"] == pytest.approx(0.2)
    say(runs / "theirs" / "train" / NAME, range(6, 9))
    (job,) = until(remote, lambda jobs: jobs[0].step == 8)
    assert list(job.series["step"]) == list(range(1, 9)) and job.corrupt == 0


def test_the_relay_sends_event_files_and_only_what_is_new(tmp_path):
    say(tmp_path / "a" / NAME, [1])
    say(tmp_path / "a" / "plugins" / "profile" / NAME, [1])  # two deep: a profiler's, no curve
    (tmp_path / "a" / "notes.txt").write_text("x")
    relay = Relay(tmp_path)
    assert [one.file for one in relay.frames()] == [f"a/{NAME}"]
    assert list(relay.frames()) == []
    size = (tmp_path / "a" / NAME).stat().st_size
    say(tmp_path / "a" / NAME, [2])
    (news,) = relay.frames()
    assert news.offset == size and len(news.data) == (tmp_path / "a" / NAME).stat().st_size - size
    (rest,) = Relay(tmp_path, {f"a/{NAME}": size}).frames()
    assert rest.offset == size


@pytest.mark.parametrize(
    ("name", "good"),
    [(f"a/{NAME}", True), (f"a/train/{NAME}", True), (f"../{NAME}", False), (f"a/../{NAME}", False),
     (f"/etc/{NAME}", False), (NAME, False), (f"a/b/c/{NAME}", False), (f"a//{NAME}", False),
     (f"a/\0/{NAME}", False), ("a/train/passwd", False), (f"./{NAME}", False)],
)  # fmt: skip
def test_only_event_files_of_a_run_are_taken(name, good):
    assert is_event_file(name) is good
