import time

import pytest
from helpers.dashboard import Runs
from helpers.tmux import tmux

__all__ = ["tmux"]


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Times of day are the same wherever the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def runs(tmp_path) -> Runs:
    path = tmp_path / "runs"
    path.mkdir()
    return Runs(path)
