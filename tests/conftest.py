"""One suite, run once per backend: ``KERAS_BACKEND=torch pytest``.

A module that needs a backend says ``pytestmark = pytest.mark.backend``. The Makefile runs
everything on torch, and the marked modules again on tensorflow and jax.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
# The cores are shared by the test processes: threads that fight are slower than one.
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from pathlib import Path  # noqa: E402 - the environment must be set before anything is imported

import pytest  # noqa: E402

_TESTS = Path(__file__).parent


def pytest_collection() -> None:
    """Two logical CPUs for tests of replicas. A module may start TensorFlow's devices when it is
    collected, and then it is too late."""
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


# What waits for `make test-all` on a backend, so that `make test` takes minutes. On jax the scaler
# and the telemetry are at home; the rest is written on keras.ops and is shown on the other two.
_LATER = {
    "jax": ("bench", "layers", "losses", "metrics", "numerics", "policies", "examples"),
    "tensorflow": ("bench/test_trial.py", "policies/test_model_kinds.py"),
}


@pytest.hookimpl(tryfirst=True)  # before pytest asks for the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    later = _LATER.get(os.environ["KERAS_BACKEND"], ())
    for item in items:
        inside = item.path.relative_to(_TESTS).as_posix().removeprefix("keras_mp/")
        if inside.startswith(later) and item.get_closest_marker("backend") is not None:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _fresh_keras_state(request):
    """Each test starts from float32, a fixed seed and no names left over; and leaves it so."""
    if request.node.get_closest_marker("backend") is None:
        yield
        return
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    previous = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(previous)


@pytest.fixture
def backend() -> str:
    import keras

    return keras.backend.backend()
