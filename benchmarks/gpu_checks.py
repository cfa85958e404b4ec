"""Faults of half precision that depend on kernels, tried on this device: each is fine or a fault.

A CPU's kernels say nothing about a GPU's: whether sums are kept in float32, whether a fully masked
row is finite, whether the optimizer's operators skip a step bit for bit.
"""

import keras
import numpy as np
from keras import layers, ops

import keras_mp


def _numbers(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def _half(*shape, scale=1.0):
    values = np.random.default_rng(0).normal(size=shape) * scale
    return ops.convert_to_tensor(values.astype("float16"))


def sums_are_kept_in_float32():
    """8,192 ones: a float16 accumulator stops at 2,048."""
    ones = ops.ones((8192,), "float16")
    product = ops.matmul(ops.reshape(ones, (1, -1)), ops.reshape(ones, (-1, 1)))
    found = float(_numbers(ops.sum(ones))), float(_numbers(product)[0, 0])
    return found == (8192.0, 8192.0), f"sum {found[0]:g}, product {found[1]:g}"


def subnormals_are_kept():
    small = ops.convert_to_tensor(np.array([2.0**-24], "float16"))
    found = float(_numbers(ops.add(small, ops.zeros_like(small)))[0])
    return found == 2.0**-24, f"2^-24 becomes {found:g}"


def a_fully_masked_row_is_finite():
    bad = []
    mask = ops.convert_to_tensor(np.array([[[False] * 4] * 4, [[True] * 4] * 4]))
    for kind in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention):
        sizes = (2, 16) if kind is keras.layers.MultiHeadAttention else (16, 2, 1)
        layer = kind(*sizes, dtype="mixed_float16")
        q = _half(2, 4, 32, scale=6.0)
        if not np.isfinite(_numbers(layer(q, q, attention_mask=mask))).all():
            bad.append(kind.__name__)
    rows = ops.convert_to_tensor(np.array([[False] * 4, [True] * 4]))
    q = _half(2, 4, 32, scale=6.0)
    if not np.isfinite(
        _numbers(layers.Attention(dtype="mixed_float16")([q, -q], mask=[None, rows]))
    ).all():
        bad.append("Attention")
    return not bad, f"not finite: {bad}" if bad else "finite"


def normalizations_of_large_values_are_finite():
    """Squares of 1,000 overflow in float16: statistics must be in float32."""
    bad = []
    for kind in (layers.LayerNormalization, layers.GroupNormalization, layers.BatchNormalization):
        options = {"groups": 2} if kind is layers.GroupNormalization else {}
        layer = kind(dtype="mixed_float16", **options)
        found = _numbers(layer(_half(4, 8, 8, 16, scale=1000.0), training=True))
        if not np.isfinite(found).all() or abs(found.std() - 1) > 0.1:
            bad.append(kind.__name__)
    return not bad, f"wrong: {bad}" if bad else "finite, of spread 1"


def layers_run_in_half_precision():
    """Kernels that some devices lack, forward and backward, in both half precisions."""
    bad = []
    for policy in ("mixed_float16", "mixed_bfloat16"):
        for name, layer, shape in (
            ("Conv3D", lambda p: layers.Conv3D(2, 3, dtype=p), (2, 5, 5, 5, 1)),
            ("MaxPooling3D", lambda p: layers.MaxPooling3D(2, dtype=p), (2, 4, 4, 4, 1)),
            ("DepthwiseConv2D", lambda p: layers.DepthwiseConv2D(3, dtype=p), (2, 8, 8, 4)),
            ("Conv2DTranspose", lambda p: layers.Conv2DTranspose(2, 3, dtype=p), (2, 8, 8, 4)),
            ("UpSampling2D", lambda p: layers.UpSampling2D(2, dtype=p), (2, 4, 4, 4)),
            ("LSTM", lambda p: layers.LSTM(8, dtype=p), (2, 6, 4)),
            ("GRU", lambda p: layers.GRU(8, dtype=p), (2, 6, 4)),
            ("stateful LSTM", lambda p: layers.LSTM(8, stateful=True, dtype=p), (2, 6, 4)),
        ):
            try:
                inputs = keras.Input(shape[1:], batch_size=shape[0])
                flat = layers.Flatten(dtype=policy)(layer(policy)(inputs))
                model = keras.Model(inputs, layers.Dense(1, dtype="float32")(flat))
                model.compile("sgd", "mse", auto_scale_loss=False)
                x = np.random.default_rng(0).random(shape).astype("float32")
                model.train_on_batch(x, np.ones((shape[0], 1), "float32"))
                if not all(np.isfinite(w).all() for w in model.get_weights()):
                    bad.append(f"{name}/{policy}")
            except Exception as error:  # whatever a missing kernel raises
                bad.append(f"{name}/{policy}: {type(error).__name__}")
    return not bad, "; ".join(bad)[:300] if bad else "8 layers, both precisions"


def a_skipped_step_changes_nothing():
    """An overflow in one gradient: weights and slots stay, bit for bit; the scale halves."""
    variables = [keras.Variable(np.ones((64, 64), "float32")) for _ in range(4)]
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.AdamW(), initial_scale=1024.0)
    optimizer.build(variables)

    def step(last):
        grads = [ops.full(v.shape, 2.0) for v in variables[:-1]]
        _apply(optimizer, [*grads, ops.full(variables[-1].shape, last)], variables)

    step(2.0)
    held = [*variables, *optimizer.inner_optimizer.variables]
    before = [ops.convert_to_numpy(v.value).copy() for v in held]
    step(float("inf"))
    same = all(
        np.array_equal(ops.convert_to_numpy(v.value), then)
        for v, then in zip(held, before, strict=True)
    )
    well = same and float(optimizer.loss_scale) == 512.0 and int(optimizer.skipped_steps) == 1
    return well, f"unchanged: {same}, scale {float(optimizer.loss_scale):g}"


def the_fused_kernel_is_right():
    """Ours against Keras' own AdamW, 20 steps: the device's operators have the same formula."""
    rng = np.random.default_rng(0)
    steps = [rng.normal(size=(64, 64)).astype("float32") for _ in range(20)]
    ends = []
    for wrapped in (False, True):
        variable = keras.Variable(np.ones((64, 64), "float32"))
        optimizer = keras.optimizers.AdamW(1e-3)
        scale = 1.0
        if wrapped:
            optimizer = keras_mp.LossScaleOptimizer(optimizer, scale=1024.0)
            scale = 1024.0
        optimizer.build([variable])
        for grad in steps:
            _apply(optimizer, [ops.convert_to_tensor(grad * scale)], [variable])
        ends.append(ops.convert_to_numpy(variable.value).copy())
    gap = float(np.abs(ends[0] - ends[1]).max())
    return gap < 1e-6, f"largest difference {gap:.1e}"


def _apply(optimizer, grads, variables):
    import warnings

    if keras.backend.backend() == "jax":
        state = [v.value for v in optimizer.variables]
        values, state = optimizer.stateless_apply(state, grads, [v.value for v in variables])
        for variable, value in zip([*variables, *optimizer.variables], [*values, *state],
                                   strict=True):  # fmt: skip
            variable.assign(value)
        return
    with warnings.catch_warnings():
        # The gradients are made up: no loss was scaled.
        warnings.simplefilter("ignore")
        if keras.backend.backend() == "torch":
            import torch

            with torch.no_grad():
                optimizer.apply(grads, variables)
        else:
            optimizer.apply(grads, variables)


CHECKS = (
    sums_are_kept_in_float32,
    subnormals_are_kept,
    a_fully_masked_row_is_finite,
    normalizations_of_large_values_are_finite,
    layers_run_in_half_precision,
    a_skipped_step_changes_nothing,
    the_fused_kernel_is_right,
)


def tried(check):
    """``{"verdict": "fine" or "fault", "seen": ...}`` of a check; one that raises is a fault."""
    try:
        well, seen = check()
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        well, seen = False, f"{type(error).__name__}: {first[:200]}"
    return {"verdict": "fine" if well else "fault", "seen": seen}
