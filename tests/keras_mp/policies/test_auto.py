"""set_policy("auto"), recommend, the environment's switches, and TF32."""

import warnings
from types import SimpleNamespace

import keras
import pytest

import keras_mp
from keras_mp.policies import detect, policy
from keras_mp.policies.hardware import Device

pytestmark = pytest.mark.backend

T4 = Device("NVIDIA", "Tesla T4", compute_capability=(7, 5))
A100 = Device("NVIDIA", "NVIDIA A100-SXM4-80GB", compute_capability=(8, 0))
SWITCHES = ("KERAS_MP_POLICY", "KERAS_FLOATX", "KERAS_MP_TF32", "NVIDIA_TF32_OVERRIDE")


@pytest.fixture(autouse=True)
def no_switches(monkeypatch):
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def on(monkeypatch):
    """Pretend that the backend uses this device."""
    return lambda device: monkeypatch.setattr(policy, "current_device", lambda: device)


def test_the_device_found_here_is_the_processor():
    """The suite hides GPUs; what the processor can do comes from the kernel's list of flags."""
    device = detect.current_device()
    assert device.vendor == "CPU"
    assert device == detect.cpu_device()
    assert device.instructions is None or "fpu" in device.instructions


def pretend_torch(monkeypatch, kind, hip=None, **properties):
    import torch

    tensor = SimpleNamespace(device=SimpleNamespace(type=kind))
    monkeypatch.setattr(detect.keras.ops, "zeros", lambda shape: tensor)
    monkeypatch.setattr(torch.version, "hip", hip)
    found = SimpleNamespace(**properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where: found)


def pretend_tensorflow(monkeypatch, kind, **details):
    import tensorflow as tf

    device = SimpleNamespace(device_type=kind, name="/physical_device:GPU:0")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda: [device])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)


def pretend_jax(monkeypatch, platform, **attributes):
    device = SimpleNamespace(platform=platform, **attributes)
    tensor = SimpleNamespace(devices=lambda: [device])
    monkeypatch.setattr(detect.keras.ops, "zeros", lambda shape: tensor)


# How each backend describes a device (from their documentation), and what that must be read as.
DESCRIPTIONS = {
    "torch": [
        (
            "cuda",
            {"name": "Tesla T4", "major": 7, "minor": 5},
            Device("NVIDIA", "Tesla T4", (7, 5)),
        ),
        (
            "cuda",
            {"hip": "6.2", "name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+"},
            Device("AMD", "AMD Instinct MI300X", architecture="gfx942:sramecc+"),
        ),
        ("mps", {}, Device("Apple", "Apple GPU")),
        ("cpu", {}, detect.cpu_device()),
    ],
    "tensorflow": [
        (
            "GPU",
            {"device_name": "Tesla T4", "compute_capability": (7, 5)},
            Device("NVIDIA", "Tesla T4", (7, 5)),
        ),
        ("GPU", {"device_name": "METAL"}, Device("Apple", "Apple GPU")),
        ("GPU", {"device_name": "new"}, Device("unknown", "new")),
        ("TPU", {}, Device("Google", "TPU")),
        ("CPU", {}, detect.cpu_device()),
    ],
    "jax": [
        (
            "gpu",
            {"device_kind": "Tesla T4", "compute_capability": "7.5"},
            Device("NVIDIA", "Tesla T4", (7, 5)),
        ),
        (
            "gpu",
            {"device_kind": "AMD Instinct MI300X", "compute_capability": "gfx942"},
            Device("AMD", "AMD Instinct MI300X", architecture="gfx942"),
        ),
        ("tpu", {"device_kind": "TPU v4"}, Device("Google", "TPU v4")),
        ("METAL", {"device_kind": "Metal"}, Device("Apple", "Apple GPU")),
        ("cpu", {}, detect.cpu_device()),
    ],
}


@pytest.mark.parametrize(("kind", "described", "device"), DESCRIPTIONS[keras.backend.backend()])
def test_what_the_backend_says_of_a_device_is_read(monkeypatch, kind, described, device):
    pretend = {"torch": pretend_torch, "tensorflow": pretend_tensorflow, "jax": pretend_jax}
    pretend[keras.backend.backend()](monkeypatch, kind, **described)
    assert detect.current_device() == device


def test_recommend_sets_nothing(on):
    on(T4)
    assert keras_mp.recommend().policy == "mixed_float16"
    assert keras.config.dtype_policy().name == "float32"


def test_recommend_for_a_device_that_is_elsewhere(on):
    on(T4)
    assert keras_mp.recommend("H100").policy == "mixed_bfloat16"
    assert keras_mp.recommend(A100).alternatives == ("mixed_float16", "float32")


@pytest.mark.parametrize(("device", "name"), [(T4, "mixed_float16"), (A100, "mixed_bfloat16")])
def test_auto_follows_the_device_and_says_so(on, device, name):
    on(device)
    choice = keras_mp.set_policy("auto")
    assert keras.config.dtype_policy().name == choice.policy == name
    assert str(choice).startswith(f"{name} on {device.name}: tensor cores compute ")
    assert keras_mp.set_policy() == choice  # auto is the default


def test_precedence_argument_then_environment_then_device(on, monkeypatch):
    on(A100)
    assert keras_mp.set_policy("auto").policy == "mixed_bfloat16"
    monkeypatch.setenv("KERAS_MP_POLICY", "16-mixed")
    choice = keras_mp.set_policy("auto")
    assert (choice.policy, choice.reason) == ("mixed_float16", "KERAS_MP_POLICY asks for it")
    assert keras_mp.set_policy("float32").policy == "float32"
    monkeypatch.setenv("KERAS_MP_POLICY", "auto")
    assert keras_mp.set_policy("auto").policy == "mixed_bfloat16"


def test_an_unknown_name_in_the_environment_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("KERAS_MP_POLICY", "half")
    with pytest.raises(ValueError, match="Received: KERAS_MP_POLICY='half'"):
        keras_mp.set_policy("auto")


def test_two_switches_that_contradict_each_other_are_both_named(monkeypatch):
    monkeypatch.setenv("KERAS_MP_POLICY", "mixed_bfloat16")
    monkeypatch.setenv("KERAS_FLOATX", "float16")
    with pytest.raises(
        ValueError, match=r"KERAS_MP_POLICY=mixed_bfloat16 and KERAS_FLOATX=float16"
    ):
        keras_mp.set_policy("auto")
    monkeypatch.setenv("KERAS_FLOATX", "float32")  # the variables of mixed_bfloat16
    assert keras_mp.set_policy("auto").policy == "mixed_bfloat16"


def test_an_emulated_precision_warns_and_is_set_all_the_same(on):
    on(T4)
    with pytest.warns(keras_mp.EmulatedPrecisionWarning, match="Recommended here: mixed_float16"):
        choice = keras_mp.set_policy("mixed_bfloat16")
    assert choice.policy == keras.config.dtype_policy().name == "mixed_bfloat16"


def test_a_precision_that_the_device_has_does_not_warn(on):
    on(A100)
    with warnings.catch_warnings(action="error"):
        for name in ("float32", "mixed_float16", "mixed_bfloat16", "auto"):
            keras_mp.set_policy(name)


@pytest.fixture
def tf32_as_before():
    if keras.backend.backend() == "torch":
        import torch

        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        yield
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        yield
        tf.config.experimental.enable_tensor_float_32_execution(before)
    else:
        import jax

        before = jax.config.jax_default_matmul_precision
        yield
        jax.config.update("jax_default_matmul_precision", before)


def backend_allows_tf32():
    """What the backend itself says, of matrix products."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.get_float32_matmul_precision() == "high"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.config.experimental.tensor_float_32_execution_enabled()
    import jax

    return jax.config.jax_default_matmul_precision == "tensorfloat32"


@pytest.mark.usefixtures("tf32_as_before")
class TestTF32:
    @pytest.mark.parametrize("allow", [True, False])
    def test_it_sets_the_backends_own_switch(self, allow):
        keras_mp.allow_tf32(not allow)
        assert keras_mp.allow_tf32(allow) is allow
        assert backend_allows_tf32() is allow

    def test_the_argument_goes_before_the_environment(self, monkeypatch):
        monkeypatch.setenv("KERAS_MP_TF32", "1")
        assert keras_mp.allow_tf32() is True
        assert keras_mp.allow_tf32(False) is False

    def test_without_either_nothing_changes(self):
        for allow in (True, False):
            keras_mp.allow_tf32(allow)
            assert keras_mp.allow_tf32() is allow

    def test_a_contradiction_names_both(self, monkeypatch):
        keras_mp.allow_tf32(False)
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        with pytest.raises(ValueError, match=r"allow_tf32\(True\) and NVIDIA_TF32_OVERRIDE=0"):
            keras_mp.allow_tf32(True)
        monkeypatch.setenv("KERAS_MP_TF32", "1")
        with pytest.raises(ValueError, match="KERAS_MP_TF32=1 and NVIDIA_TF32_OVERRIDE=0"):
            keras_mp.allow_tf32()
        assert backend_allows_tf32() is False
        assert keras_mp.allow_tf32(False) is False

    def test_a_switch_is_one_or_zero(self, monkeypatch):
        monkeypatch.setenv("KERAS_MP_TF32", "yes")
        with pytest.raises(ValueError, match=r"Expected 1 or 0\. Received: KERAS_MP_TF32='yes'"):
            keras_mp.allow_tf32()
