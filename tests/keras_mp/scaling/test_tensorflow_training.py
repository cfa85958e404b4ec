"""The tensorflow kernel inside ``fit``: graph, XLA, several steps an execution, eager."""

import warnings

import keras
import numpy as np
import pytest
from helpers.stepping import host, snapshot
from keras import layers

import keras_mp

if keras.backend.backend() != "tensorflow":
    pytest.skip("tests of the tensorflow kernel", allow_module_level=True)

import tensorflow as tf

from keras_mp.scaling.kernels import tensorflow_graph, tensorflow_guard
from keras_mp.scaling.kernels.tensorflow_told import TensorFlowTold
from keras_mp.scaling.told import LossScaleExhaustedError

pytestmark = pytest.mark.backend

COMPILE = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "four_steps": {"jit_compile": False, "steps_per_execution": 4},
    "xla_four_steps": {"jit_compile": True, "steps_per_execution": 4},
    "eager": {"run_eagerly": True},
}
X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = 0.25 * (X[:, :1] - X[:, 1:2])


def normalised(policy="mixed_float16"):
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(1, name="last"),
        ]
    )


def compiled(model, how="graph", bind=True, **kwargs):
    if "scale" not in kwargs:
        kwargs["initial_scale"] = 2.0**8  # fits these models: no skip but those planted
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(0.03125), **kwargs)
    optimizer.watch(64)
    model.compile(optimizer=optimizer, loss="mse", **COMPILE[how])
    if bind:
        optimizer.bind(model)
    return optimizer


def fit(model, x=X, y=Y, batch_size=8, **kwargs):
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **kwargs)


def with_bad(*batches, value=1e6):  # infinite in float16
    x = X.copy()
    for batch in batches:
        x[batch * 8] = value
    return x


@pytest.mark.parametrize("how", COMPILE)
def test_fit_skips_what_overflows_and_spares_the_models_state(how):
    model = normalised()
    optimizer = compiled(model, how)
    fit(model, X[:32], Y[:32])
    state = [*model.weights, *optimizer.inner_optimizer.variables]
    before = snapshot(*state)
    bad = fit(model, with_bad(0)[:8], Y[:8])
    assert snapshot(*state) == before
    assert np.isnan(bad.history["loss"][0])  # an epoch of nothing else has no loss, and not 0

    history = fit(model, with_bad(2, 5), Y)
    rows = optimizer.recent_steps()
    assert [r.step for r in rows if not r.finite] == [5, 8, 11]
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (4 + 6, 3)
    # Eager, the first loss is scaled before the optimizer is built, and so not seen.
    assert all(r.loss_finite == r.finite for r in rows[how == "eager" :])
    good = [r.loss for r in rows[-8:] if r.finite]
    assert len(good) == 6
    np.testing.assert_allclose(history.history["loss"][0], np.mean(good), rtol=1e-5)
    assert np.isfinite(model.predict(X, verbose=0)).all()


@pytest.mark.parametrize("how", ["graph", "eager"])
def test_a_skipped_step_is_as_if_the_batch_had_not_been_there(how):
    weights = []
    for x, y in (
        (
            np.concatenate([X[:16], with_bad(0)[:8], X[16:32]]),
            np.concatenate([Y[:16], Y[:8], Y[16:32]]),
        ),
        (X[:32], Y[:32]),
    ):
        keras.utils.set_random_seed(1)
        model = normalised()
        compiled(model, how, scale=8.0)  # static: the scale itself would round differently
        fit(model, x, y)
        weights.append(snapshot(*model.weights))
    assert weights[0] == weights[1]


def test_without_the_guard_the_statistics_are_poisoned(monkeypatch):
    monkeypatch.setattr(tensorflow_guard.TensorFlowGuard, "restore", lambda self, before: None)
    model = normalised()
    compiled(model)
    fit(model, with_bad(1))
    assert not all(np.isfinite(host(v)).all() for v in model.non_trainable_weights)


def test_without_the_loss_guard_the_epochs_loss_is_nan(monkeypatch):
    monkeypatch.setattr(tensorflow_guard.LossGuard, "settle", lambda self, tracker, loss: None)
    model = normalised()
    compiled(model)
    assert np.isnan(fit(model, with_bad(1)).history["loss"][0])


@pytest.mark.parametrize("how", ["graph", "xla"])
def test_weights_loaded_between_steps_survive_a_skip(how):
    """A traced step goes back to what it has read itself: no copy, so none can be stale."""
    model = normalised()
    compiled(model, how)
    fit(model)
    loaded = [np.full(v.shape, 0.5, "float32") for v in model.weights]
    model.set_weights(loaded)
    fit(model, with_bad(0)[:8], Y[:8])
    for value, variable in zip(loaded, model.weights, strict=True):
        np.testing.assert_array_equal(host(variable), value)


def test_in_eager_mode_refresh_takes_the_loaded_values():
    model = normalised()
    optimizer = compiled(model, "eager")
    fit(model, X[:16], Y[:16])
    model.set_weights([np.full(v.shape, 0.5, "float32") for v in model.weights])
    optimizer.refresh()
    fit(model, with_bad(0)[:8], Y[:8])
    assert all((host(v) == 0.5).all() for v in model.weights)


class Hidden(keras.Model):
    """Its forward pass is inside a function: the step's graph does not show what it reads."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(3)
        self.norm = layers.BatchNormalization()
        self.last = layers.Dense(1)
        for layer, width in ((self.first, 4), (self.norm, 3), (self.last, 3)):
            layer.build((None, width))
        self.inside = tf.function(lambda x: self.last(self.norm(self.first(x), training=True)))

    def call(self, x):
        return self.inside(x)


def test_state_that_the_graph_does_not_show_is_copied():
    keras.config.set_dtype_policy("mixed_float16")
    model = Hidden()
    optimizer = compiled(model)
    fit(model, X[:16], Y[:16])
    before = snapshot(*model.weights)
    fit(model, with_bad(0)[:8], Y[:8])
    assert optimizer.skipped_steps == 1
    assert snapshot(*model.weights) == before
    assert optimizer._kernel.guard.copies


# Which precision, and how far from the loss.


def branched():
    x = keras.Input((4,))
    a = layers.Dense(4, name="a")(x)
    b = layers.Dense(4, name="b", dtype="mixed_float16")(x)
    return keras.Model(x, layers.Dense(1, name="c")(layers.Add()([a, b])))


class Reversed(keras.Model):
    """Attributes in another order than the layers are called in."""

    def __init__(self):
        super().__init__()
        self.last = layers.Dense(1, name="last")
        self.middle = layers.Dense(4, name="middle")
        self.first = layers.Dense(4, name="first")

    def call(self, x):
        return self.last(self.middle(self.first(x)))


def globally(policy, make):
    def build():
        keras.config.set_dtype_policy(policy)
        return make()

    return build


class Recurrent(keras.Sequential):
    def __init__(self):
        super().__init__([keras.Input((4, 1)), layers.LSTM(2, unroll=False), layers.Dense(1)])


MODELS = {
    "global": (globally("mixed_float16", normalised), True),
    "one layer": (branched, True),
    "subclassed": (globally("mixed_float16", Reversed), True),
    "plain float16": (globally("float16", Reversed), True),
    "in a function": (globally("mixed_float16", Hidden), True),
    "in a loop": (globally("mixed_float16", Recurrent), True),
    "bfloat16": (lambda: normalised("mixed_bfloat16"), False),
    "float32": (lambda: normalised("float32"), False),
    "float32 in a function": (Hidden, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_graph_tells_whether_scaling_is_needed(name):
    make, half = MODELS[name]
    model = make()
    x = X[..., None] if name == "in a loop" else X
    for how in ("graph", "xla") if name == "global" else ("graph",):
        optimizer = compiled(model, how, bind=False)
        fit(model, x[:16], Y[:16])
        assert optimizer.loss_scale == (2.0**8 if half else 1.0)
        fit(model, np.full_like(x[:8], np.nan), Y[:8])
        assert optimizer.loss_scale == (2.0**7 if half else 1.0)
        assert optimizer.skipped_steps == 1


def test_in_eager_mode_nothing_is_seen_and_scaling_goes_on():
    model = normalised("float32")
    optimizer = compiled(model, "eager", bind=False)
    fit(model, X[:16], Y[:16])
    assert optimizer.loss_scale == 2.0**8


def test_the_scaled_loss_follows_the_scale():
    """A constant in the first trace would go unnoticed until the scale moves."""
    model = normalised()
    optimizer = compiled(model, growth_interval=2)
    fit(model)
    rows = optimizer.recent_steps()
    assert [r.scale for r in rows] == [2.0 ** (8 + i // 2) for i in range(8)]
    # Gradients of a loss that was scaled by another number would have norms that jump.
    norms = np.array([r.grad_norm for r in rows])
    assert norms.max() / norms.min() < 8


@pytest.mark.parametrize("how", ["graph", "xla"])
def test_distance_is_counted_in_the_graph_and_not_in_the_list(how):
    keras.config.set_dtype_policy("mixed_float16")
    model = Reversed()
    optimizer = compiled(model, how)
    fit(model, X[:16], Y[:16])
    distances = {
        path.split("/")[-2]: optimizer._distances[i]
        for i, path in enumerate(optimizer.variable_paths)
        if path.endswith("kernel")
    }
    assert distances["last"] < distances["middle"] < distances["first"]
    assert set(optimizer._distances) == set(range(len(optimizer.variable_paths)))


@keras.saving.register_keras_serializable(package="tests")
class Planted(layers.Layer):
    """Multiplies by 1, or makes an overflow when asked: forward, or only on the way back."""

    def __init__(self, where, **kwargs):
        super().__init__(**kwargs)
        self.where = where
        self.on = tf.Variable(0.0, trainable=False)

    def call(self, x):
        factor = tf.cast(1 + self.on * np.float32(3e38), x.dtype)
        if self.where == "forward":
            return x * factor

        @tf.custom_gradient
        def identity(x):
            return tf.identity(x), lambda dy: dy * factor

        return identity(x)


@pytest.mark.parametrize(
    ("where", "position", "how"),
    [
        ("forward", 0, "graph"),
        ("forward", 2, "graph"),
        ("forward", 1, "xla"),
        ("forward", 1, "four_steps"),
        ("backward", 0, "graph"),
        ("backward", 2, "graph"),
        ("backward", 1, "xla"),
    ],
)
def test_the_report_names_the_layer_nearest_the_loss(where, position, how):
    keras.config.set_dtype_policy("mixed_float16")
    dense = [layers.Dense(4, name=f"dense{i}") for i in range(3)]
    planted = Planted(where, name="planted")
    stack = [*dense[: position + 1], planted, *dense[position + 1 :]]
    model = keras.Sequential([keras.Input((4,)), *stack, layers.Dense(1, name="head")])
    optimizer = compiled(model, how)
    fit(model, X[:8], Y[:8])
    planted.on.assign(1.0)
    fit(model, X[8:16], Y[8:16])
    row = optimizer.recent_steps()[-1]
    found = optimizer.describe(row)
    assert not row.finite
    if where == "backward":  # everything behind the planted layer, seen from the loss
        assert found.origin == "backward"
        assert found.layer.endswith(f"dense{position}")
        assert {p.split("/")[-2] for p in found.variables} == {
            f"dense{i}" for i in range(position + 1)
        }
    else:
        assert found.origin == "loss"
        assert found.layer.endswith("planted")
    assert optimizer.overflow_report().layer == found.layer
    assert optimizer.overflow_report().origin == found.origin


class PlantedKernel(layers.Dense):
    """A Dense whose kernel's gradient alone overflows when asked."""

    def build(self, shape):
        super().build(shape)
        self.on = tf.Variable(0.0, trainable=False)

    def call(self, x):
        factor = tf.where(self.on > 0, np.float32("inf"), np.float32(1))

        @tf.custom_gradient
        def identity(kernel):
            return tf.identity(kernel), lambda dy: dy * tf.cast(factor, dy.dtype)

        return tf.matmul(x, identity(self.kernel)) + self.bias


def deep(make):
    return keras.Sequential([keras.Input((4,)), make("a"), make("b"), make("c"), make("head", 1)])


def branched(make):
    inputs = keras.Input((4,))
    stem = make("a")(inputs)
    joined = layers.Add()([make("b")(stem), make("c")(stem)])
    return keras.Model(inputs, make("head", 1)(joined))


@keras.saving.register_keras_serializable(package="tests")
class Turned(keras.Model):
    def __init__(self, make):
        super().__init__()
        self.head, self.c, self.b, self.a = make("head", 1), make("c"), make("b"), make("a")

    def call(self, x):
        return self.head(self.c(self.b(self.a(x))))


@pytest.mark.parametrize("how", ["graph", "xla"])
@pytest.mark.parametrize("shape", [deep, branched, Turned])
def test_one_kernels_gradient_alone_is_named_in_any_model(shape, how):
    made = {}

    def make(name, units=4):
        made[name] = PlantedKernel(units, name=name)
        return made[name]

    model = shape(make)
    optimizer = compiled(model, how, on_exhausted="continue")
    fit(model, X[:8], Y[:8])
    for name, layer in made.items():
        layer.on.assign(1.0)
        fit(model, X[8:16], Y[8:16])
        layer.on.assign(0.0)
        found = optimizer.describe(optimizer.recent_steps()[-1])
        assert found.variables == [layer.kernel.path]
        assert found.layer.split("/")[-1] == name
        assert found.origin == "backward"


# Told.


def nothing_trains(how, **kwargs):
    model = normalised()
    optimizer = compiled(model, how, scale=4.0, **kwargs)
    return optimizer, lambda: fit(model, np.full_like(X, np.nan), Y)


@pytest.mark.parametrize("how", ["graph", "four_steps", "eager"])
def test_a_run_without_training_is_ended_where_that_was_asked(how):
    optimizer, run = nothing_trains(how, on_exhausted="raise")
    expected = LossScaleExhaustedError if how == "eager" else tf.errors.UnknownError
    with pytest.raises(expected, match="Nothing trains: 3 steps in a row"):
        run()
    assert optimizer.skipped_steps < 8


def test_under_xla_it_is_ended_when_the_host_looks():
    _, run = nothing_trains("xla", on_exhausted="raise")
    with pytest.raises(LossScaleExhaustedError, match="Nothing trains: 8 steps in a row"):
        run()


def test_under_xla_monitor_looks_while_fit_goes_on(tmp_path):
    model = normalised()
    optimizer = compiled(model, "xla", scale=4.0, on_exhausted="raise")
    monitor = keras_mp.Monitor(tmp_path, every=1)
    with pytest.raises(LossScaleExhaustedError, match="Nothing trains"):
        fit(model, np.full_like(X, np.nan), Y, callbacks=[monitor])
    assert optimizer.skipped_steps < 8


@pytest.mark.parametrize("how", ["graph", "xla"])
@pytest.mark.parametrize(
    ("x", "y", "blamed"),
    [(np.nan, 0.0, "The batch itself was not finite."), (1.0, 3e38, "/last'.")],
)
def test_a_run_without_training_is_said_once_with_who_is_to_blame(how, x, y, blamed):
    model = normalised()
    compiled(model, how, scale=4.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(model, X * np.float32(x), np.full_like(Y, y))
    about = [str(w.message) for w in said if "Nothing trains" in str(w.message)]
    assert len(about) == 1
    assert blamed in about[0]


def test_a_run_without_training_is_not_said_where_that_was_asked():
    _, run = nothing_trains("graph", on_exhausted="continue")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        run()


def test_python_is_not_called_from_the_graph_while_all_is_well(monkeypatch):
    calls = []
    monkeypatch.setattr(TensorFlowTold, "_say", lambda self, *args: calls.append(args))
    model = normalised()
    compiled(model)
    model.make_train_function()

    def steps(x):
        data = iter(tf.data.Dataset.from_tensor_slices((x, Y)).batch(8))
        for _ in range(8):
            model.train_function(data)

    steps(with_bad(1, 4))
    assert calls == []
    steps(np.full_like(X, np.nan))
    steps(np.full_like(X, np.nan))
    steps(np.full_like(X, np.nan))
    assert len(calls) > 0


# The graph's context.


def test_xla_is_known_while_tracing():
    seen = {}

    def note(name):
        def step(x):
            seen[name] = tensorflow_graph.in_xla()
            tf.cond(
                x > 0,
                lambda: seen.update({f"{name}, in a branch": tensorflow_graph.in_xla()}) or x,
                lambda: x,
            )
            return x

        return step

    tf.function(note("graph"), autograph=False)(tf.constant(1.0))
    tf.function(note("xla"), jit_compile=True, autograph=False)(tf.constant(1.0))
    inner = tf.function(note("inside xla"), autograph=False)
    tf.function(lambda x: inner(x), jit_compile=True, autograph=False)(tf.constant(1.0))
    assert seen == {
        "graph": False,
        "graph, in a branch": False,
        "xla": True,
        "xla, in a branch": True,
        "inside xla": True,
        "inside xla, in a branch": True,
    }
    assert not tensorflow_graph.in_xla()


def test_a_loss_of_another_graph_is_not_used():
    """A loop may compute the loss in one function and apply in another."""
    variables = [keras.Variable([1.0, 2.0])]
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.125))
    optimizer.build(variables)
    optimizer.watch(4)

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(variables[0] * 1.0))
        return tape.gradient(loss, variables[0].value)

    @tf.function(autograph=False)
    def apply(grad):
        optimizer.apply([grad], variables)

    apply(gradients())
    np.testing.assert_array_equal(host(variables[0]), [0.875, 1.875])
    assert [r.loss for r in optimizer.recent_steps()] == [None]
    # An eager loss would be a constant of the graph.
    optimizer.scale_loss(tf.constant(7.0))
    tf.function(lambda: optimizer.apply([tf.zeros(2)], variables), autograph=False)()
    assert [r.loss for r in optimizer.recent_steps()] == [None, None]
