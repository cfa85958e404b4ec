"""2N steps equal N steps, a save, a new process, a load and N steps: bit for bit."""

import functools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import resuming

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where one other process went on with what this one began."""
    folder = tmp_path_factory.mktemp("resume")
    for precision in resuming.PRECISIONS:
        resuming.begin(folder, precision)
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    subprocess.run(
        [sys.executable, resuming.__file__, str(folder)], check=True, env=environment, timeout=300
    )
    return folder


@functools.cache
def reached(precision, epochs):
    """The state after that many epochs without a stop."""
    return resuming.state(resuming.fit(resuming.make(precision), epochs))


@pytest.mark.parametrize("way", resuming.WAYS)
@pytest.mark.parametrize("precision", resuming.PRECISIONS)
def test_resuming_equals_not_having_stopped(precision, way, folder):
    straight = reached(precision, 2)
    assert (straight["skipped"], straight["applied"]) == (2, 10)
    with np.load(folder / f"{precision}-{way}.npz") as resumed:
        assert sorted(resumed) == sorted(straight)
        differ = [k for k in straight if not np.array_equal(resumed[k], straight[k])]
    assert not differ
    # And the halves did something: the test would see a state that was not restored.
    half = reached(precision, 1)
    assert not all(np.array_equal(half[k], straight[k]) for k in straight)
