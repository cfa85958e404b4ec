"""What is recommended on devices that nobody needs to have."""

import pytest

from keras_mp.policies.cards import cards, device_named, find_card
from keras_mp.policies.hardware import Device, emulation_warning, precisions, recommend_for


def nvidia(major, minor):
    return Device("NVIDIA", f"pretend {major}.{minor}", compute_capability=(major, minor))


def cpu(*instructions):
    return Device("CPU", "pretend CPU", instructions=frozenset(instructions))


PRETEND = {
    # compute capability: from the table of the 2018 paper's successors; see hardware.py for sources
    "Maxwell": (nvidia(5, 2), "float32", ()),
    "P100": (nvidia(6, 0), "float32", ("mixed_float16",)),
    "P40": (nvidia(6, 1), "float32", ()),
    "V100": (nvidia(7, 0), "mixed_float16", ("float32",)),
    "T4": (nvidia(7, 5), "mixed_float16", ("float32",)),
    "A100": (nvidia(8, 0), "mixed_bfloat16", ("mixed_float16", "float32")),
    "A10": (nvidia(8, 6), "mixed_bfloat16", ("mixed_float16", "float32")),
    "L4": (nvidia(8, 9), "mixed_bfloat16", ("mixed_float16", "float32")),
    "H100": (nvidia(9, 0), "mixed_bfloat16", ("mixed_float16", "float32")),
    "B200": (nvidia(10, 0), "mixed_bfloat16", ("mixed_float16", "float32")),
    "RTX 5090": (nvidia(12, 0), "mixed_bfloat16", ("mixed_float16", "float32")),
    "NVIDIA, nothing known": (Device("NVIDIA", "pretend"), "float32", ()),
    "MI100": (
        Device("AMD", "AMD Instinct MI100", architecture="gfx908:sramecc+:xnack-"),
        "mixed_float16",
        ("mixed_bfloat16", "float32"),
    ),
    "MI250": (
        Device("AMD", "AMD Instinct MI250X", architecture="gfx90a:sramecc+:xnack-"),
        "mixed_bfloat16",
        ("mixed_float16", "float32"),
    ),
    "MI300X": (
        Device("AMD", "AMD Instinct MI300X", architecture="gfx942"),
        "mixed_bfloat16",
        ("mixed_float16", "float32"),
    ),
    "MI300X by name alone": (
        Device("AMD", "AMD Instinct MI300X"),
        "mixed_bfloat16",
        ("mixed_float16", "float32"),
    ),
    "MI100, its architecture as its name": (
        Device("AMD", "gfx908"),
        "mixed_float16",
        ("mixed_bfloat16", "float32"),
    ),
    "MI210, its architecture in its name": (
        Device("AMD", "AMD Instinct / gfx90a:sramecc+:xnack-"),
        "mixed_bfloat16",
        ("mixed_float16", "float32"),
    ),
    "RX 7900": (
        Device("AMD", "AMD Radeon RX 7900 XTX", architecture="gfx1100"),
        "mixed_bfloat16",
        ("mixed_float16", "float32"),
    ),
    "an older AMD": (Device("AMD", "AMD Radeon VII", architecture="gfx906"), "float32", ()),
    "Apple": (Device("Apple", "Apple GPU"), "mixed_float16", ("float32",)),
    "TPU": (Device("Google", "TPU v4"), "mixed_bfloat16", ("float32",)),
    "CPU, AVX512_BF16": (cpu("avx2", "avx512_bf16"), "mixed_bfloat16", ("float32",)),
    "CPU, AMX": (cpu("avx2", "amx_tile", "amx_bf16"), "mixed_bfloat16", ("float32",)),
    "CPU, AVX512 without BF16": (cpu("avx2", "avx512f"), "float32", ()),
    "CPU with float16 units": (cpu("avx512_fp16"), "float32", ()),
    "CPU, unreadable": (Device("CPU", "pretend"), "float32", ()),
    "anything else": (Device("unknown", "xpu:0"), "float32", ()),
}


@pytest.mark.parametrize("name", PRETEND)
def test_recommendation(name):
    device, policy, alternatives = PRETEND[name]
    choice = recommend_for(device)
    assert (choice.policy, choice.alternatives) == (policy, alternatives)
    assert choice.device == device.name
    assert choice.reason
    assert "\n" not in str(choice)


def test_float16_is_recommended_together_with_loss_scaling():
    for device, policy, _ in PRETEND.values():
        says_so = "need loss scaling (keras_mp.LossScaleOptimizer)" in recommend_for(device).reason
        assert says_so == (policy == "mixed_float16")


def test_float16_is_never_recommended_on_a_cpu():
    for flags in [(), ("avx512_fp16",), ("amx_fp16", "avx512_fp16"), ("avx512_bf16",)]:
        choice = recommend_for(cpu(*flags))
        assert "float16" not in choice.policy.replace("bfloat16", "")
        assert not [name for name in choice.alternatives if name == "mixed_float16"]


@pytest.mark.parametrize(
    ("device", "policy", "says"),
    [
        (nvidia(7, 5), "mixed_bfloat16", "emulated through float32"),
        (nvidia(7, 0), "bfloat16", "emulated through float32"),
        (nvidia(6, 1), "mixed_float16", "1/64 of float32's rate"),
        (cpu("avx512_bf16"), "mixed_float16", "convolutions take 6 times as long"),
        (cpu("avx2"), "mixed_bfloat16", "no bfloat16 instructions"),
        (Device("Google", "TPU"), "float16", "no float16 units"),
    ],
)
def test_an_emulated_precision_is_said_with_its_cost_and_a_way_out(device, policy, says):
    warning = emulation_warning(device, policy)
    assert says in warning
    assert f"Recommended here: {recommend_for(device).policy}" in warning


def test_what_a_device_computes_fast_or_may_compute_fast_gives_no_warning():
    for device, policy, alternatives in PRETEND.values():
        assert emulation_warning(device, policy) is None
        for alternative in alternatives:
            assert emulation_warning(device, alternative) is None
    assert emulation_warning(Device("unknown", "x"), "mixed_bfloat16") is None


def test_tf32_begins_with_ampere():
    assert precisions(nvidia(8, 0))["tf32"].support == "fast"
    assert precisions(nvidia(7, 5))["tf32"].support == "none"
    assert precisions(cpu())["tf32"].support == "none"


def test_every_card_of_the_table_is_complete_enough_to_be_asked_about():
    assert len(cards()) > 20
    for card in cards():
        assert card.source
        assert card.device.vendor in ("NVIDIA", "AMD", "Google")
        if card.device.vendor == "NVIDIA":
            assert card.device.compute_capability
        assert device_named(card.device.name) == card.device


def test_the_published_gain_of_half_precision_is_what_the_data_sheets_say():
    """V100: 125 against 15.7. A100: 312 against TF32's 156, so only 2 where TF32 is on."""
    v100, a100 = find_card("Tesla V100-SXM2-16GB"), find_card("NVIDIA A100-SXM4-80GB")
    assert v100.tflops["float16"] / v100.tflops["float32"] == pytest.approx(7.96, abs=0.01)
    assert "bfloat16" not in v100.tflops
    assert a100.tflops["bfloat16"] / a100.tflops["tf32"] == 2
    assert (v100.memory, a100.memory) == (16, 80)


@pytest.mark.parametrize("name", ["NVIDIA A100-PCIE-40GB", "NVIDIA A10G", "AMD EPYC", ""])
def test_a_card_that_is_not_in_the_table_is_not_taken_for_another(name):
    assert find_card(name) is None


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("T4", "mixed_float16"),
        ("a100", "mixed_bfloat16"),
        ("7.5", "mixed_float16"),
        ("sm_90", "mixed_bfloat16"),
        ("12.0", "mixed_bfloat16"),
        ("cpu", "float32"),
        ("tpu", "mixed_bfloat16"),
        ("mps", "mixed_float16"),
        ("gfx908", "mixed_float16"),
        ("gfx90a", "mixed_bfloat16"),
        ("GFX942", "mixed_bfloat16"),
        ("gfx1100", "mixed_bfloat16"),
        ("gfx906", "float32"),
    ],
)
def test_a_device_can_be_asked_about_by_name(text, policy):
    assert recommend_for(device_named(text)).policy == policy


@pytest.mark.parametrize("text", ["A9000", "", "gpu", "gfx", "gfx90a2b"])
def test_an_unknown_device_lists_the_known_ones(text):
    with pytest.raises(ValueError, match="H200") as caught:
        device_named(text)
    assert f"Received: device={text!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["MI300X", "AMD Instinct MI250X", "mi210"])
def test_an_amd_card_without_confirmed_figures_can_be_asked_about(name):
    device = device_named(name)
    assert recommend_for(device).policy == "mixed_bfloat16"
    assert find_card(device.name) is None
    assert device_named("MI355X").architecture == "gfx950"
