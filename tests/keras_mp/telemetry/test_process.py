"""A process is told apart from a later one with the same number."""

import os
import subprocess
import sys
import time

from keras_mp.telemetry.process import HOST, is_alive, own_start


def test_this_process_lives_and_another_of_its_number_does_not():
    assert is_alive(os.getpid(), own_start()) is True
    assert is_alive(os.getpid(), own_start(), HOST) is True
    assert is_alive(os.getpid(), own_start() - 3600) is False  # the number was used again


def test_ended_and_unreaped_processes_are_gone():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.01)
    assert is_alive(process.pid, None) is False  # a zombie: ended, nobody asked how
    process.wait()
    assert is_alive(process.pid, None) is False


def test_another_machine_s_process_is_not_known():
    assert is_alive(os.getpid(), None, "elsewhere.example") is None


def test_nonsense_numbers():
    for pid in (-1, 0, 2**40, 2**70):
        assert is_alive(pid, 1.0) in (False, None)
