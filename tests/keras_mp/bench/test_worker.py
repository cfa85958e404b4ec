"""What a trial's process does with a model: precision, optimizer, losses, parts of a step."""

import sys

import keras
import numpy as np
import pytest
from helpers.bench_models import Autoencoder, data, in_a_policy_of_its_own, net

import keras_mp
from keras_mp.bench import batches, peaks, workload
from keras_mp.bench.batches import Batches, synthetic
from keras_mp.bench.timing import one_step
from keras_mp.bench.worker import Worker, in_words
from keras_mp.bench.workload import fresh_optimizer, put_policy
from keras_mp.policies.detect import device_of

pytestmark = pytest.mark.backend

MODELS = "helpers.bench_models"
NET = f"{MODELS}:net"


def worker(variant="float32", spec=NET, data="helpers.bench_models:data", **more):
    made = Worker()
    known = {"policy": None, "batch": 32, "seed": 0, "classes": []}
    made.about = made.build(spec=spec, data=data, variant=variant, **(known | more))
    return made


def is_plain_adam(optimizer):
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return isinstance(optimizer, keras.optimizers.Adam) and not scaled


class TestPrecision:
    def test_float32_has_no_loss_scale(self):
        made = worker("float32")
        assert is_plain_adam(made.model.optimizer)
        assert {layer.compute_dtype for layer in made.model.layers} == {"float32"}

    def test_float16_has_ours_whatever_keras_put_there(self):
        made = worker("mixed_float16")
        assert type(made.model.optimizer) is keras_mp.LossScaleOptimizer
        assert {layer.compute_dtype for layer in made.model.layers} == {"float16"}

    def test_bfloat16_needs_none(self):
        made = worker("mixed_bfloat16")
        assert is_plain_adam(made.model.optimizer)
        assert {layer.compute_dtype for layer in made.model.layers} == {"bfloat16"}

    def test_planned_is_the_plan(self):
        made = worker("planned", policy="mixed_float16")
        planned = keras_mp.plan(made.model, "mixed_float16", made.batches.sized(32)[0])
        for row in planned:
            if row.path:
                layer = made.model.get_layer(row.path)
                assert layer.dtype_policy.name == row.policy
        assert made.about["float32_layers"] == [
            row.path for row in planned if row.path and row.policy == "float32"
        ]
        assert "head" in made.about["float32_layers"]
        assert made.about["policy"] == "mixed_float16"

    def test_planned_without_a_policy_plans_for_half_precision(self):
        assert worker("planned").about["policy"] in ("mixed_bfloat16", "mixed_float16")

    def test_a_file_takes_the_variants_precision(self, tmp_path):
        path = str(tmp_path / "net.keras")
        model = net()
        model.train_on_batch(*data())
        model.save(path)
        for variant, compute in (("float32", "float32"), ("mixed_float16", "float16")):
            made = worker(variant, path)
            assert {layer.compute_dtype for layer in made.model.layers} == {compute}
            assert made.model.loss.get_config()["from_logits"]

    @pytest.mark.parametrize("variant", ["float32", "mixed_bfloat16", "mixed_float16"])
    @pytest.mark.parametrize("saved", [False, True])
    def test_a_policy_of_the_models_own_gives_way(self, variant, saved, tmp_path):
        spec = "helpers.bench_models:in_a_policy_of_its_own"
        if saved:
            in_a_policy_of_its_own().save(tmp_path / "own.keras")
            spec = str(tmp_path / "own.keras")
        made = worker(variant, spec)
        policies = [layer.dtype_policy.name for layer in made.model.layers]
        assert policies == [variant, "float32"]  # the head was chosen
        scaled = isinstance(made.model.optimizer, keras_mp.LossScaleOptimizer)
        assert scaled == (variant == "mixed_float16")

    def test_policies_that_no_trial_has_give_way_too(self, backend):
        if backend == "jax":
            pytest.skip("jax has no float64 unless asked for it")
        inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, dtype="mixed_float16")])
        layers = [
            keras.layers.Dense(8, dtype="float16"),
            inner,
            keras.layers.Dense(2, dtype="float64"),
        ]
        model = keras.Sequential([keras.Input((24,)), *layers])
        put_policy(model, "mixed_bfloat16")
        found = [layers[0], *inner.layers, layers[2]]
        assert [layer.compute_dtype for layer in found] == ["bfloat16"] * 3

    def test_a_policy_in_a_programs_first_lines_gives_way(self, tmp_path):
        program = tmp_path / "program_with_a_policy.py"
        program.write_text(
            "import keras\n"
            'keras.config.set_dtype_policy("mixed_float16")\n'
            "runs = []\n"
            "def net():\n"
            "    return keras.Sequential([keras.Input((24,)), keras.layers.Dense(3)])\n"
            "def data():\n"
            "    from helpers.bench_models import data\n"
            "    runs.append(1)\n"
            "    return data()[0], data()[0][:, :3]\n"
        )
        try:
            made = worker("float32", f"{program}:net", f"{program}:data")
            assert {layer.compute_dtype for layer in made.model.layers} == {"float32"}
            assert sys.modules["program_with_a_policy"].runs == [1]  # it was loaded but once
        finally:
            del sys.modules["program_with_a_policy"]


class TestOptimizer:
    def test_a_schedule_that_tells_no_config_is_taken_as_it_is(self):
        for variant in ("float32", "mixed_float16"):
            made = worker(variant, "helpers.bench_models:warmed_up")
            losses = made.losses(steps=12)
            assert np.isfinite(losses).all()
            assert float(made.model.optimizer.learning_rate) == pytest.approx(0.01)

    def test_what_a_file_has_learnt_is_forgotten(self, tmp_path):
        model = net()
        model.train_on_batch(*data())
        model.save(tmp_path / "net.keras")
        made = worker("float32", str(tmp_path / "net.keras"))
        assert int(made.model.optimizer.iterations) == 0


class TestLosses:
    def test_every_variant_starts_from_the_same_weights_and_batches(self):
        base = worker("float32").losses(steps=8)
        assert worker("float32").losses(steps=8) == base
        for variant in ("mixed_bfloat16", "planned"):
            losses = worker(variant).losses(steps=8)
            assert losses != base  # another precision it is
            np.testing.assert_allclose(losses, base, rtol=0.02)
        assert base[-1] < base[0]

    def test_a_source_that_is_shuffled_gives_all_variants_the_same(self):
        base = worker(data="helpers.bench_models:shuffled").losses(steps=8)
        planned = worker("planned", data="helpers.bench_models:shuffled").losses(steps=8)
        np.testing.assert_allclose(planned, base, rtol=0.02)

    def test_a_train_step_that_returns_no_loss_has_none(self, monkeypatch):
        made = worker()
        monkeypatch.setattr(type(made.model), "train_on_batch", lambda *_, **__: {"d_loss": 1.0})
        assert made.losses(steps=3) == []

    def test_another_seed_is_another_start(self):
        one, same, two = (worker(seed=seed).model.get_weights()[0] for seed in (0, 0, 1))
        assert np.array_equal(one, same) and not np.array_equal(one, two)


class TestWords:
    """What the trial says of an error of the user's model."""

    def test_of_a_layer_that_keras_names_first(self):
        made = worker(spec="helpers.bench_models:not_compiled", data=None)
        with pytest.raises(ValueError) as raised:
            made.model(np.zeros((2, 7), "float32"))
        said = in_words(raised.value)
        assert "expected axis -1 of input shape to have value 6" in said
        assert "\x1b" not in said and "\n" not in said

    def test_of_one_line_and_of_none(self):
        assert in_words(RuntimeError("out of\nmemory")) == "out of"
        assert in_words(NotImplementedError()) == "NotImplementedError"

    def test_of_a_step_with_labels_that_the_loss_does_not_know(self, backend):
        if backend == "jax":
            pytest.skip("jax does not look at labels")
        made = worker()
        made.batches = Batches((data()[0], np.full(96, 70)), 32, "wrong labels")
        with pytest.raises(Exception, match="70") as raised:
            made.losses(steps=1)
        assert "70" in in_words(raised.value)  # on tensorflow it stands below a stack

    def test_a_model_without_an_optimizer(self, monkeypatch):
        made = worker()
        made.model.optimizer = None
        with pytest.raises(ValueError, match="`compile` has given an optimizer"):
            fresh_optimizer(made.model)

    def test_a_baseline_on_tensor_cores_is_said(self, monkeypatch):
        assert worker().about["notes"] == []
        monkeypatch.setattr(workload, "current_device", lambda: device_of("A100"))
        before = keras_mp.allow_tf32()
        try:
            for allowed in (True, False):
                keras_mp.allow_tf32(allowed)
                assert any("TF32" in note for note in worker().about["notes"]) is allowed
        finally:
            keras_mp.allow_tf32(before)


class TestTime:
    def test_a_turn_counts_steps_and_samples(self):
        answer = worker().turn(steps=4)
        assert (answer["steps"], answer["samples"]) == (4, 128)
        assert answer["seconds"] > 0

    def test_the_parts_make_up_the_step_and_leave_the_model_well(self):
        made = worker("mixed_float16")
        made.losses(steps=1)
        before = [np.array(w) for w in made.model.get_weights()]
        parts = made.split(step_seconds=10.0)
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(10.0)
        # A step of fit that took less than its parts do alone is all computing and optimizer.
        parts = made.split(step_seconds=1e-9)
        assert (parts["input"], parts["other"]) == (0, 0)
        assert sum(parts.values()) == pytest.approx(1e-9)
        for now, then in zip(made.model.get_weights(), before, strict=True):
            assert np.isfinite(now).all() and np.abs(now - then).max() < 0.5

    def test_batches_that_take_long_to_come_are_seen(self):
        made = worker(data="helpers.bench_models:slow")
        assert made.about["batch"] == 8
        made.losses(steps=1)
        assert made.split(step_seconds=10.0)["input"] >= 0.03
        assert made.turn(steps=4)["samples"] == 32
        assert made.turn(steps=100)["steps"] == 6  # an epoch has no more


class TestData:
    def test_a_tuple_of_inputs_is_no_pair_of_input_and_target(self):
        made = worker("planned", f"{MODELS}:two_inputs", f"{MODELS}:two_in_a_tuple")
        assert np.isfinite(made.losses(steps=2)).all()
        assert made.turn(steps=2)["samples"] == 64

    @pytest.mark.parametrize(("source", "batches"), [("x_alone", 6), ("batches_of_x", 5)])
    def test_a_model_with_a_loss_of_its_own_needs_no_targets(self, source, batches, backend):
        made = worker("planned", f"{MODELS}:without_targets", f"{MODELS}:{source}", batch=16)
        losses = made.losses(steps=batches + 1)
        assert losses[-1] < losses[0]  # of the same batch
        assert made.turn(steps=3)["samples"] == 48
        assert sum(made.split(step_seconds=1.0).values()) == pytest.approx(1.0)
        if backend != "tensorflow":
            assert made.memory(sizes=[4, 8, 16])["points"][2][1] > 0

    def test_a_file_with_inputs_alone_will_do_for_it(self, tmp_path):
        np.savez(tmp_path / "d.npz", x=data()[0])
        made = worker(spec=f"{MODELS}:without_targets", data=str(tmp_path / "d.npz"))
        assert np.isfinite(made.losses(steps=2)).all()

    def test_a_train_step_of_ones_own_gets_what_fit_gives_it(self, monkeypatch):
        got = []

        class Own(Autoencoder):
            def train_step(self, *arguments):
                got.append(type(arguments[-1]))
                return super().train_step(*arguments)

        model = Own()
        model.compile("sgd")
        one_step(model, data()[0][:8], None)
        model.fit(data()[0][:8], verbose=0)
        assert len(set(got)) == 1

    def test_a_turn_copies_no_more_than_so_many_bytes(self, monkeypatch):
        made = worker()
        a_batch = 32 * (24 * 4 + 8)
        monkeypatch.setattr(batches, "TURN_BYTES", 4 * a_batch)
        assert made.turn(steps=100)["steps"] == 4
        monkeypatch.setattr(batches, "TURN_BYTES", 1)
        assert made.turn(steps=100)["steps"] == 2

    def test_text_cannot_be_made_up(self, backend):
        if backend != "tensorflow":
            pytest.skip("only tensorflow has tensors of text")
        inputs = keras.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
        model = keras.Model(inputs, keras.layers.Embedding(4, 2)(lookup(inputs)))
        with pytest.raises(ValueError, match="Text cannot be made up"):
            synthetic(model, 4)

    def test_a_generator_is_made_anew(self):
        made = worker(data="helpers.bench_models:generated")
        assert made.about["batch"] == 16
        x, _ = data()
        np.testing.assert_array_equal(made.batches.take(7)[6][0], x[16:32])
        assert made.batches.sized(40)[0].shape == (40, 24)
        assert made.turn(steps=3)["samples"] == 48
        assert made.turn(steps=3)["samples"] == 48

    def test_several_steps_an_execution_all_count(self, backend):
        made = worker()
        made.model.steps_per_execution = 2 if backend != "torch" else 1
        made.model.make_train_function(force=True)
        assert made.turn(steps=6)["samples"] == 6 * 32

    def test_made_up_numbers_fit_the_model(self):
        made = worker(spec="helpers.bench_models:transformer", data=None)
        x, y = made.batches.sized(40)
        assert x.shape == (40, 16) and x.min() >= 1 and x.max() < 50  # ids, though float32
        assert np.all(x == np.round(x))
        assert y.shape == (40, 16, 50)
        assert made.about["notes"] == [
            "the model is not compiled: trained with Adam and mean squared error"
        ]

    def test_sparse_targets_are_classes(self):
        _, y = worker(data=None).batches.sized(50)
        assert y.dtype == np.int32 and y.shape == (50,) and y.min() >= 0 and y.max() < 10

    def test_a_file_of_arrays(self, tmp_path):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(20, 24)).astype("float32")
        np.savez(tmp_path / "d.npz", x=x, y=np.arange(20) % 10)
        made = worker(data=str(tmp_path / "d.npz"), batch=8)
        taken = made.batches.take(4)
        np.testing.assert_array_equal(taken[2][0], x[np.arange(16, 24) % 20])
        assert made.about["data"] == "d.npz"

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"spec": "helpers.bench_models:nothing"}, "bench_models:nothing"),
            ({"spec": "no_such_module:f"}, "no_such_module:f"),
            ({"spec": "net"}, "package.module:function"),
            ({"spec": "helpers.bench_models:a_string"}, "returns a keras.Model"),
            ({"data": "nowhere.npz"}, "no file"),
            ({"spec": "helpers.bench_models:with_an_argument"}, "missing 1 required .* 'width'"),
            ({"spec": "helpers.bench_models:CLASSES"}, "without arguments.*CLASSES, of type int"),
            ({"spec": "helpers.bench_models:explodes"}, "explodes failed: RuntimeError: no model"),
            ({"data": "helpers.bench_models:three"}, "tuple of 3"),
            ({"data": "helpers.bench_models:x_alone"}, "Expected data as .x, y.*alone, in ndarray"),
            ({"data": "helpers.bench_models:unequal"}, r"x of \[96\], y of \[95\]"),
            ({"data": "helpers.bench_models:nested_numbers"}, "arrays, or lists or dicts of"),
            ({"data": "helpers.bench_models:batches_of_x"}, "batches .x, y.*alone, in generator"),
            ({"data": "helpers.bench_models:no_data"}, "no_data failed: OSError: the disk"),
        ],
    )
    def test_what_is_not_there_is_said(self, arguments, says):
        with pytest.raises(ValueError, match=says):
            worker(**arguments)

    def test_a_file_that_is_none_is_said(self, tmp_path):
        for name, argument in (("d.npz", "data"), ("net.keras", "spec")):
            (tmp_path / name).write_bytes(b"something else")
            with pytest.raises(ValueError, match=name):
                worker(**{argument: str(tmp_path / name)})

    def test_arrays_may_have_the_names_of_inputs_and_outputs(self, tmp_path):
        rng = np.random.default_rng(0)
        arrays = {"numbers": rng.normal(size=(20, 4)), "scale": rng.normal(size=(20, 1))}
        arrays |= {"kind": np.arange(20) % 10, "size": rng.normal(size=(20, 1))}
        np.savez(tmp_path / "d.npz", **arrays)
        made = worker(spec="helpers.bench_models:two_named", data=str(tmp_path / "d.npz"), batch=8)
        x, y = made.batches.take(1)[0]
        assert list(x) == ["numbers", "scale"] and list(y) == ["kind", "size"]
        np.testing.assert_array_equal(x["numbers"], arrays["numbers"][:8])
        assert all(np.isfinite(made.losses(steps=2)))

    def test_each_output_has_targets_for_its_own_loss(self):
        made = worker(spec="helpers.bench_models:two_named", data=None, batch=8)
        _, (kind, size) = made.batches.sized(8)
        assert kind.dtype == np.int32 and kind.shape == (8,)
        assert size.dtype == np.float32 and size.shape == (8, 1)
        assert all(np.isfinite(made.losses(steps=2)))

    @pytest.mark.parametrize(("spec", "from_logits"), [("logits", True), ("softmax", False)])
    def test_without_a_loss_class_ids_get_one_that_takes_them(self, spec, from_logits):
        made = worker(spec=f"helpers.bench_models:{spec}")
        assert made.model.loss.from_logits is from_logits
        assert made.about["notes"] == [
            "the model is not compiled: trained with Adam and sparse categorical cross-entropy"
        ]

    def test_the_module_of_the_data_brings_the_classes_that_a_file_names(self, tmp_path):
        from helpers.bench_models import Doubled

        model = keras.Sequential([keras.Input((24,)), Doubled(), keras.layers.Dense(10)])
        model.compile("sgd", "mse")
        model.save(tmp_path / "own.keras")
        registered = keras.saving.get_custom_objects()
        kept = registered.pop("bench_models>Doubled")
        loaded = sys.modules.pop("helpers.bench_models")
        try:
            with pytest.raises(ValueError, match=r"locate class 'Doubled'.*if --data names"):
                worker(spec=str(tmp_path / "own.keras"), data=None)
            made = worker(spec=str(tmp_path / "own.keras"))
            assert type(made.model.layers[0]).__name__ == "Doubled"
        finally:
            registered["bench_models>Doubled"] = kept
            sys.modules["helpers.bench_models"] = loaded

    def test_arrays_without_a_target_are_refused(self, tmp_path):
        np.savez(tmp_path / "d.npz", x=np.zeros((2, 24)))
        with pytest.raises(ValueError, match=r"x and y.*\['x'\]"):
            worker(data=str(tmp_path / "d.npz"))

    def test_unknown_lengths_need_data(self):
        inputs = keras.Input((None, 3))
        model = keras.Model(inputs, keras.layers.LSTM(2)(inputs))
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="length that is not known"):
            synthetic(model, 4)


FAMILIES = ("mlp", "cnn", "lstm", "transformer", "autoencoder")


class TestMemory:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("variant", ["float32", "planned"])
    def test_the_line_tells_batch_sizes_it_has_not_seen(self, family, variant, backend):
        from keras_mp.bench.capacity import fit_line, sizes_for

        made = worker(variant, f"helpers.bench_models:{family}", data=None, batch=8)
        answer = made.memory(sizes=list(sizes_for(8)))
        if backend == "tensorflow":
            assert "tensorflow on a CPU does not tell" in answer["unknown"]
            return
        assert answer["what"] == peaks.COUNTED
        line = fit_line(answer["what"], answer["points"], 10**9)
        assert line.slope > 0
        for batch in (3, 24, 100):
            _, measured = peaks.step_bytes(made.model, made.batches, batch)
            assert line.at(batch) == pytest.approx(measured, rel=0.1)

    def test_it_counts_weights_slots_and_what_is_kept(self, backend):
        if backend == "tensorflow":
            pytest.skip("tensorflow on a CPU does not tell")
        from keras_mp.numerics.memory import saved_bytes

        made = worker(data=None)
        made.losses(steps=1)
        weights = 4 * (24 * 32 + 32 + 32 * 10 + 10)
        kept = saved_bytes(made.model, made.batches.sized(16)[0]).total
        found = peaks.step_bytes(made.model, made.batches, 16)[1]
        # Adam: two slots a weight, and two numbers of its own.
        assert found == pytest.approx(3 * weights + kept, abs=16)
