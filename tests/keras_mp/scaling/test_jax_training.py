"""GuardedTrainStep: on jax a skipped step spares the model; elsewhere it changes nothing."""

import warnings

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, host, snapshot

import keras_mp
from keras_mp.scaling.jax_training import keep

pytestmark = pytest.mark.backend

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="about Keras' train step for jax")


class Guarded(keras_mp.GuardedTrainStep, keras.Model):
    pass


class GuardedSequential(keras_mp.GuardedTrainStep, keras.Sequential):
    pass


class Subclassed(keras_mp.GuardedTrainStep, keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.norm = keras.layers.Dense(4), keras.layers.BatchNormalization()
        self.drop, self.last = keras.layers.Dropout(0.25), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.drop(self.norm(self.first(x), training=training), training=training))


def layers():
    return [
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(1),
    ]


def functional(cls):
    inputs = x = keras.Input((3,))
    for layer in layers():
        x = layer(x)
    return cls(inputs, x)


MODELS = {
    "functional": lambda: functional(Guarded),
    "sequential": lambda: GuardedSequential([keras.Input((3,)), *layers()]),
    "subclassed": Subclassed,
}


def compiled(model, **kwargs):
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0)
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return optimizer


def data(bad_batches=(), batches=6, size=4, where="x"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batches * size, 3)).astype("float32")
    y = rng.normal(size=(batches * size, 1)).astype("float32")
    for batch in bad_batches:
        (x if where == "x" else y)[batch * size] = np.inf
    return x, y


def fit(model, x, y, **kwargs):
    return model.fit(x, y, batch_size=4, shuffle=False, verbose=0, **kwargs)


def statistics(model):
    return [v for v in model.non_trainable_variables if "moving" in v.path]


PAIRS = {
    "functional": (lambda: functional(Guarded), lambda: functional(keras.Model)),
    "sequential": (
        MODELS["sequential"],
        lambda: keras.Sequential([keras.Input((3,)), *layers()]),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_guarded_model_trains_like_the_plain_one(kind):
    histories = []
    for make in PAIRS[kind]:
        keras.utils.set_random_seed(1)
        model = make()
        compiled(model, metrics=["mae"])
        histories.append(fit(model, *data(), epochs=2).history)
    one, other = histories
    assert set(one) == set(other) == {"loss", "mae"}
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5)


@on_jax
@pytest.mark.parametrize("where", ["x", "y"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_skipped_step_spares_statistics_and_the_mean_loss(kind, where):
    model = MODELS[kind]()
    optimizer = compiled(model, metrics=["mae"])
    good, bad = data(), data(bad_batches=[0], where=where)
    fit(model, *good)
    before = snapshot(*statistics(model), *model.trainable_variables)
    seeds = snapshot(*[v for v in model.non_trainable_variables if "seed" in v.path])
    fit(model, *(values[:4] for values in bad))
    assert optimizer.skipped_steps == 1
    assert snapshot(*statistics(model), *model.trainable_variables) == before
    after = snapshot(*[v for v in model.non_trainable_variables if "seed" in v.path])
    assert after != seeds and len(seeds) == 1  # the same dropout mask need not return


@on_jax
def test_the_epochs_loss_is_the_mean_of_the_finite_batches():
    x, y = data(bad_batches=[1, 4], where="y")
    model = functional(Guarded)
    optimizer = compiled(model)
    seen = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: seen.append(logs))
    history = fit(model, x, y, callbacks=[watch]).history
    assert optimizer.skipped_steps == 2 and optimizer.applied_steps == 4
    assert all(np.isfinite(float(logs["loss"])) for logs in seen)
    assert np.isfinite(history["loss"]).all()
    # A batch that does not count leaves the mean where it was.
    means = [float(logs["loss"]) for logs in seen]
    assert means[1] == means[0] != means[2] and means[4] == means[3] != means[5]
    assert history["loss"] == [pytest.approx(means[-1])]


@on_jax
def test_without_the_guard_one_overflow_poisons_the_statistics():
    model = functional(keras.Model)
    compiled(model)
    history = fit(model, *data(bad_batches=[2])).history
    assert not all(np.isfinite(host(v)).all() for v in statistics(model))
    assert not np.isfinite(history["loss"][0])


@on_jax
@pytest.mark.parametrize(("value", "origin"), [(np.inf, "loss"), (1e6, "backward")])
def test_the_optimizer_knows_the_loss_and_the_origin(value, origin):
    model = functional(Guarded)
    # A label of 1e6 leaves the loss finite, and its gradient times 2**120 not.
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.001), scale=2.0**120)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.watch(8)
    x, y = data()
    y[8] = value
    fit(model, x, y)
    rows = optimizer.recent_steps()
    assert [row.finite for row in rows] == [True, True, False, True, True, True]
    assert rows[2].loss_finite is (origin == "backward")
    assert optimizer.describe(rows[2]).origin == origin
    assert optimizer.overflow_report().origin == origin
    assert rows[0].loss_finite is True
    assert 0 < rows[0].loss < 100


@on_jax
def test_without_the_guard_the_origin_is_unknown():
    model = functional(keras.Model)
    optimizer = compiled(model)
    optimizer.watch(8)
    fit(model, *data(bad_batches=[2]))
    rows = optimizer.recent_steps()
    assert all(row.loss is None and row.loss_finite is None for row in rows)
    assert optimizer.overflow_report().origin == "unknown"


@on_jax
def test_binding_a_model_that_is_not_guarded_is_said_once_with_the_fix():
    model = functional(keras.Model)
    optimizer = compiled(model)
    optimizer.build(model.trainable_variables)
    with pytest.warns(UserWarning, match=r"2 non-trainable variables.*GuardedTrainStep"):
        optimizer.bind(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.bind(model)


@pytest.mark.parametrize("kind", [*MODELS, "without state"])
def test_binding_a_model_that_needs_no_word_is_silent(kind):
    if kind == "without state":
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    else:
        model = MODELS[kind]()
        model(np.zeros((1, 3), "float32"))
    optimizer = compiled(model)
    optimizer.build(model.trainable_variables)
    optimizer.bind(model)


def test_another_optimizer_trains_as_ever():
    model = functional(Guarded)
    model.compile("sgd", "mse")
    assert np.isfinite(fit(model, *data()).history["loss"]).all()


@on_jax
@pytest.mark.parametrize("kwargs", [{"steps_per_execution": 3}, {"run_eagerly": True}], ids=str)
def test_several_steps_an_execution_and_eager_steps(kwargs):
    model = GuardedSequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = compiled(model, **kwargs)
    optimizer.watch(16)
    x, y = data(bad_batches=[1, 2], batches=3)
    history = fit(model, x, y).history
    assert [row.finite for row in optimizer.recent_steps()] == [True, False, False]
    assert [row.loss_finite for row in optimizer.recent_steps()] == [True, False, False]
    assert np.isfinite(history["loss"]).all()
    assert all(np.isfinite(host(v)).all() for v in model.variables)


@on_jax
def test_several_outputs_keep_their_mean_losses():
    inputs = keras.Input((3,))
    model = Guarded(
        inputs, [keras.layers.Dense(1, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)]
    )
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    model.compile(optimizer=optimizer, loss=["mse", "mse"])
    x, y = data(bad_batches=[2], where="y")
    history = fit(model, x, [y, np.zeros_like(y)]).history
    assert set(history) == {"loss", "a_loss", "b_loss"}
    assert np.isfinite(list(history.values())).all()
    assert optimizer.skipped_steps == 1


@on_jax
def test_a_model_with_metrics_of_its_own_counts_them_once():
    class Own(keras_mp.GuardedTrainStep, keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.mine = keras.metrics.Sum(name="loss")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            self.mine.update_state(1.0)
            return loss

        @property
        def metrics(self):
            return [self.mine]

    model = functional(Own)
    compiled(model)
    assert fit(model, *data()).history["loss"] == [6.0]


def test_keep_chooses_by_the_flag():
    same = keras.ops.ones(2)
    for flag in (True, False):
        new, left = keep(
            keras.ops.convert_to_tensor(flag), [keras.ops.ones(2), same], [same * 0, same]
        )
        np.testing.assert_array_equal(host(new), float(flag))
        assert left is same
