"""The optimizer's state survives every way that Keras can store it, in both directions."""

import copy
import functools
import io
import pickle
import warnings
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, host, make_gradients, scaled, snapshot, stateless

import keras_mp
from keras_mp.scaling.admission import admit
from keras_mp.scaling.state import ScaleConfig, ScaleState

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1] * 0.5
BAD = X.copy()
BAD[9] = 1e30  # float16 overflows in the third batch of four

WRAPPERS = {
    "plain": lambda inner: inner,
    "stock": lambda inner: keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=1024.0, dynamic_growth_steps=2, name="scaler"
    ),
    "ours": lambda inner: keras_mp.LossScaleOptimizer(
        inner, initial_scale=1024.0, growth_interval=2, name="scaler"
    ),
}

INNER = {
    "adam": lambda: keras.optimizers.Adam(0.01, name="inner"),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, name="inner"),
    "accumulating": lambda: keras.optimizers.RMSprop(
        0.01, gradient_accumulation_steps=2, name="inner"
    ),
    "bare": lambda: keras.optimizers.SGD(0.1, name="inner"),
    "multi": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.1, momentum=0.9, name="sgd"),
            {"net/last/.*": keras.optimizers.Adam(0.01, name="adam")},
        ),
        name="inner",
    ),
}


def make(kind="ours", inner="adam", width=8, dtype="mixed_float16", optimizer=None, build=True):
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((6,), name="in"),
            keras.layers.Dense(width, "relu", dtype=dtype, name="first"),
            keras.layers.Dense(1, dtype="float32", name="last"),
        ],
        name="net",
    )
    optimizer = WRAPPERS[kind](INNER[inner]()) if optimizer is None else optimizer
    model.compile(optimizer, "mse", auto_scale_loss=False, jit_compile=BACKEND == "jax")
    if build:
        optimizer.build(model.trainable_variables)
    return model


def train(model, x=X, epochs=1, callbacks=None):
    model.fit(x, Y, batch_size=4, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return model


@functools.cache
def trained(kind, inner="adam"):
    """A model after six steps, one of them skipped where something skips it. Not to be changed."""
    model, rng = make(kind, inner), np.random.default_rng(1)
    for step in range(6):
        true = make_gradients(rng, [tuple(v.shape) for v in model.trainable_variables])
        scale = 1.0 if kind == "plain" else host(model.optimizer.dynamic_scale)
        bad = np.inf if step == 2 and kind != "plain" else None
        if kind == "ours":
            model.optimizer.scale_loss(keras.ops.zeros(()))
        gradients = scaled(true, scale, bad)
        if kind == "stock" and BACKEND == "jax":  # where Keras' wrapper has no other way
            stateless(model.optimizer, gradients, model.trainable_variables)
        else:
            model.optimizer.apply(gradients, model.trainable_variables)
    return model


def inner_of(model):
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def everything(model):
    return snapshot(*model.variables, *inner_of(model).variables)


# The routes: each takes a trained model and a fresh one.


def by_keras_file(source, target, tmp_path):
    source.save(tmp_path / "a.keras")
    target.load_weights(tmp_path / "a.keras")


def by_weights_file(source, target, tmp_path):
    source.save_weights(tmp_path / "a.weights.h5")
    target.load_weights(tmp_path / "a.weights.h5")


def by_shards(source, target, tmp_path):
    source.save_weights(tmp_path / "a.weights.json", max_shard_size=0.0001)
    target.load_weights(tmp_path / "a.weights.json")


def by_state_tree(source, target, tmp_path):
    # As numpy, the way Keras' OrbaxCheckpoint takes it.
    target.set_state_tree(source.get_state_tree(value_format="numpy_array"))


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    "pair", [("plain", "ours"), ("ours", "plain"), ("ours", "ours"), ("stock", "ours")]
)
def test_all_optimizer_state_is_carried_over(pair, inner, tmp_path):
    source = trained(pair[0], inner)
    for route in (by_keras_file, by_weights_file, by_shards, by_state_tree):
        target = make(pair[1], inner)
        assert everything(source) != everything(target)
        route(source, target, tmp_path)
        assert everything(source) == everything(target), route
        if pair == ("ours", "ours"):
            assert target.optimizer._state.read() == source.optimizer._state.read(), route
            assert source.optimizer.skipped_steps == target.optimizer.skipped_steps == 1
        if pair == ("stock", "ours"):
            assert target.optimizer.loss_scale == host(source.optimizer.dynamic_scale), route
            assert host(target.optimizer.step_counter) == host(source.optimizer.step_counter)
            assert target.optimizer.loss_scale != target.optimizer.config.initial_scale


def test_a_whole_model_comes_back_from_its_file(tmp_path):
    source = trained("ours")
    source.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert type(loaded.optimizer) is keras_mp.LossScaleOptimizer
    assert loaded.optimizer.config == source.optimizer.config
    assert loaded.optimizer._state.read() == source.optimizer._state.read()
    assert everything(loaded) == everything(source)


def test_keras_own_wrapper_in_a_file_becomes_ours(tmp_path):
    source = trained("stock")
    source.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert type(loaded.optimizer) is keras.optimizers.LossScaleOptimizer
    with pytest.warns(UserWarning, match="wrapped in a LossScaleOptimizer already"):
        optimizer = keras_mp.LossScaleOptimizer(loaded.optimizer, growth_interval=2)
    loaded.compile(optimizer, "mse")
    optimizer.build(loaded.trainable_variables)
    assert optimizer.loss_scale == host(source.optimizer.dynamic_scale) == 2048
    assert host(optimizer.step_counter) == host(source.optimizer.step_counter) == 1
    assert everything(loaded) == everything(source)


def test_backup_and_restore_brings_the_scaler_back(tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("crash")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    source = make("ours")
    with pytest.raises(RuntimeError, match="crash"):
        train(source, BAD, epochs=3, callbacks=[backup(), Crash()])
    target, seen = make("ours", build=False), []

    class See(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append((epoch, self.model.optimizer._state.read()))

    train(target, BAD, epochs=3, callbacks=[backup(), See()])
    state = source.optimizer._state.read()
    assert (state.skipped, state.applied) == (2, 10)
    assert seen == [(2, state)]


@pytest.mark.parametrize("how", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_a_model_is_pickled_with_its_optimizer(how):
    source = trained("ours")
    twin = how(source)
    assert twin.optimizer._state.read() == source.optimizer._state.read()
    assert everything(twin) == everything(source)


def test_an_optimizer_is_pickled_with_its_state():
    source = trained("ours")
    # Twice: the first copy was never built and must hand on what it holds.
    twin = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source.optimizer))))
    target = make(optimizer=twin)
    assert twin._state.read() == source.optimizer._state.read()
    assert snapshot(*inner_of(target).variables) == snapshot(*inner_of(source).variables)
    assert target.optimizer is twin


def test_state_that_is_loaded_before_the_optimizer_is_built_waits_for_it(tmp_path):
    source, target = trained("ours"), make("ours", build=False)
    by_weights_file(source, target, tmp_path)
    assert not target.optimizer.built
    target.optimizer.build(target.trainable_variables)
    assert target.optimizer._state.read() == source.optimizer._state.read()
    assert everything(target) == everything(source)


@pytest.mark.parametrize("bound", [False, True])
def test_state_that_waits_for_fit_to_build_the_optimizer_is_there_at_its_first_step(
    bound, tmp_path
):
    source, target = make(), make(build=False)
    if bound:
        target.optimizer.bind(target)
        source.optimizer.bind(source)
    train(source, BAD)
    by_weights_file(source, target, tmp_path)
    assert not target.optimizer.built
    for model in (source, target):
        train(model, BAD, epochs=2)
    assert target.optimizer._state.read() == source.optimizer._state.read()
    assert target.optimizer.skipped_steps == 3
    assert everything(target) == everything(source)


# What a file holds.


def bytes_in(path):
    """Bytes of all arrays in a file: (the optimizer's, the model's)."""
    total = {True: 0, False: 0}
    raw = io.BytesIO(zipfile.ZipFile(path).read("model.weights.h5"))
    with h5py.File(raw) as file:

        def add(name, item):
            total[name.startswith("optimizer")] += getattr(item, "nbytes", 0)

        file.visititems(add)
    return total[True], total[False]


def test_adams_variables_are_stored_once(tmp_path):
    sizes = {}
    for kind in ("ours", "stock"):
        make(kind, width=512).save(tmp_path / f"{kind}.keras")
        optimizer, model = bytes_in(tmp_path / f"{kind}.keras")
        sizes[kind] = optimizer / model
    assert 2 <= sizes["ours"] < 2.02
    assert sizes["stock"] > 3.99  # what is avoided: twice two slots


# What cannot be used.


def test_keras_own_wrapper_refuses_our_file_and_keeps_what_it_has(tmp_path):
    source, target = trained("ours"), make("stock")
    before = snapshot(*target.optimizer.variables)
    source.save_weights(tmp_path / "a.weights.h5")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        target.load_weights(tmp_path / "a.weights.h5")
    for name in ("scaler", "inner"):
        said = f"Skipping variable loading for optimizer '{name}'"
        assert any(said in str(w.message) for w in told)
    assert snapshot(*target.optimizer.variables) == before
    assert snapshot(*target.variables) == snapshot(*source.variables)


@pytest.mark.parametrize("inners", [("bare", "adam"), ("adam", "bare")])
def test_another_number_of_variables_is_refused_with_a_warning(inners, tmp_path):
    source, target = trained("ours", inners[0]), make("ours", inners[1])
    before = snapshot(*inner_of(target).variables)
    source.save_weights(tmp_path / "a.weights.h5")
    with pytest.warns(UserWarning, match=r"has \d+ variables whereas the saved optimizer has"):
        target.load_weights(tmp_path / "a.weights.h5")
    assert snapshot(*inner_of(target).variables) == before
    assert snapshot(*target.variables) == snapshot(*source.variables)


def test_other_shapes_are_refused_before_anything_changes(tmp_path):
    source, target = trained("ours"), make("ours", width=9)
    store = {}
    source.optimizer.save_own_variables(store)
    before = snapshot(*target.optimizer.variables)
    with pytest.raises(ValueError, match=r"other shapes .*nothing was changed.*first_kernel"):
        target.optimizer.load_own_variables(store)
    assert snapshot(*target.optimizer.variables) == before


DAMAGES = {
    "nan": ("scale", np.float32("nan"), "`scale` is .* stays"),
    "zero": ("scale", np.float32(0), "outside"),
    "too large": ("scale", np.float32(2.0**40), "outside"),
    "negative": ("skipped", np.int32(-3), "outside"),
    "missing": ("applied", None, "`applied` is missing"),
    "shape": ("good_steps", np.zeros(3, np.int32), "`good_steps` is .* stays"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_scaler_state_is_said_and_costs_nothing_else(damage, tmp_path):
    name, value, said = DAMAGES[damage]
    source, target = trained("ours"), make("ours")
    path = tmp_path / "a.weights.h5"
    source.save_weights(path)
    with h5py.File(path, "r+") as file:
        group = file["optimizer/scaler_state/vars"]
        del group[name]
        if value is not None:
            group[name] = value
    with pytest.warns(UserWarning, match=said):
        target.load_weights(path)
    assert everything(target) == everything(source)
    state, config = target.optimizer._state.read(), target.optimizer.config
    assert config.min_scale <= state.scale <= config.max_scale
    assert min(state.good_steps, state.skipped, state.applied) >= 0


@pytest.mark.parametrize("source, target", [("ours", "ours"), ("plain", "ours"), ("ours", "plain")])
def test_a_sound_file_is_loaded_without_a_word(source, target, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        by_weights_file(trained(source), make(target), tmp_path)


def test_admit_keeps_a_static_scale_and_what_is_in_range():
    config = ScaleConfig(dynamic=False, initial_scale=8.0)
    current = ScaleState.initial(config)
    state, complaints = admit({"scale": 64.0, "skipped": 3}, current, config, complete=False)
    assert (state.scale, state.skipped, complaints) == (8.0, 3, [])


def test_a_scale_of_a_run_that_needed_none_does_not_replace_one_that_is_needed(tmp_path):
    source = train(make("ours", "bare", dtype="float32"))
    source.optimizer._state.switch(False)
    assert source.optimizer.loss_scale == 1
    target = make("ours", "bare")
    by_weights_file(source, target, tmp_path)
    assert target.optimizer.loss_scale == target.optimizer.config.initial_scale == 1024
    assert target.optimizer.applied_steps == source.optimizer.applied_steps == 6


# set_weights and configs.


def test_set_weights_takes_all_variables_or_none():
    source, target = trained("ours"), make("ours")
    weights = [host(v) for v in source.optimizer.variables]
    before = snapshot(*target.optimizer.variables)
    with pytest.raises(ValueError, match=rf"\({len(weights)}.*Received: {len(weights) - 1} val"):
        target.optimizer.set_weights(weights[:-1])
    with pytest.raises(ValueError, match="other shapes"):
        target.optimizer.set_weights([*weights[:-1], np.zeros((9, 9))])
    assert snapshot(*target.optimizer.variables) == before
    target.optimizer.set_weights(weights)
    assert snapshot(*target.optimizer.variables) == snapshot(*source.optimizer.variables)


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"initial_scale": 1024.0, "dynamic_growth_steps": 9}, (1024.0, 9, True)),
        ({"initial_scale": 2.0**30, "dynamic_growth_steps": 9}, (2.0**30, 9, True)),
        ({"initial_scale": 64.0, "dynamic_growth_steps": 9, "dynamic": False}, (64.0, 9, False)),
    ],
)
def test_configs_of_keras_own_wrapper_are_understood(config, expected):
    inner = keras.saving.serialize_keras_object(keras.optimizers.SGD(0.5))
    optimizer = keras_mp.LossScaleOptimizer.from_config({**config, "inner_optimizer": inner})
    got = optimizer.config
    assert (got.initial_scale, got.dynamic) == (expected[0], expected[2])
    if got.dynamic:
        assert got.growth_interval == expected[1]
    assert float(host(optimizer.learning_rate)) == 0.5


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.train.Checkpoint is TensorFlow's")
def test_tf_train_checkpoint(tmp_path):
    import tensorflow as tf

    def checkpoint(model, optimizer):
        return tf.train.Checkpoint(model=model, optimizer=optimizer)

    source, target = trained("ours"), make("ours")
    path = checkpoint(source, source.optimizer).save(tmp_path / "ours")
    checkpoint(target, target.optimizer).restore(path).assert_existing_objects_matched()
    assert target.optimizer._state.read() == source.optimizer._state.read()
    assert everything(target) == everything(source)
    # The plain optimizer's file belongs to the inner optimizer.
    source, target = trained("plain"), make("ours")
    path = checkpoint(source, source.optimizer).save(tmp_path / "plain")
    checkpoint(target, inner_of(target)).restore(path).expect_partial()
    assert everything(target) == everything(source)
