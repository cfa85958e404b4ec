"""Whatever stands in the place of a run's files: nobody waits for it, and nobody stumbles."""

import os

import pytest

from keras_mp.telemetry.folders import claim_run, release_run
from keras_mp.telemetry.relay import Relay
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile
from keras_mp.telemetry.tfrecord import FrameFile

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")


@pytest.mark.parametrize("reader", [JournalFile, FrameFile])
def test_a_pipe_in_a_file_s_place_is_not_waited_for(tmp_path, reader):
    path = tmp_path / "events-0.jsonl"
    os.mkfifo(path)
    found = reader(path)
    assert found.read() == [] and found.behind() == 0
    path.unlink()
    path.write_bytes(b"")
    assert found.read() == [] and found.error is None


def odd_meta(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_text('{"pid":' + "[" * 200_000)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("kind", ["pipe", "endless", "deep", "folder", "bytes"])
def test_a_job_starts_and_a_dashboard_looks_whatever_meta_json_is(tmp_path, kind):
    run = tmp_path / "job"
    run.mkdir()
    odd_meta(run / "meta.json", kind)
    (run / "events-0.jsonl").write_text('{"kind": "step", "step": 3, "time": 1.0}\n')
    folder = claim_run(tmp_path, "job")
    assert folder == run
    release_run(folder)
    runs = RunsFolder(tmp_path)
    runs.poll(None)
    (job,) = runs.jobs
    assert job.step == 3 and job.meta is None and job.problems
    assert "job/events-0.jsonl" in [frame.file for frame in Relay(tmp_path).frames()]
