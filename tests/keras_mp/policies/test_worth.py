"""Worth: where half precision gains little. Nothing here looks at a clock: casts and padding are
counted."""

import re

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.cli import main
from keras_mp.policies.structure import structure_of
from keras_mp.policies.work import with_parts, work_of
from keras_mp.policies.worth import padding

pytestmark = pytest.mark.backend
BACKEND = keras.backend.backend()


def casts(model, data):
    """How often a forward pass changes a tensor's float dtype, as the backend itself counts."""
    if BACKEND == "torch":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            found = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                kwargs = kwargs or {}
                if func.overloadpacket.__name__ == "_to_copy" and "dtype" in kwargs:
                    self.found += kwargs["dtype"] != args[0].dtype
                return func(*args, **kwargs)

        tensor = ops.convert_to_tensor(data)
        with Count() as count:
            model(tensor, training=False)
        return count.found
    if BACKEND == "tensorflow":
        import tensorflow as tf

        graph = tf.function(lambda x: model(x, training=False)).get_concrete_function(
            tf.constant(data)
        )
        return sum(operation.type == "Cast" for operation in graph.graph.get_operations())
    import jax

    text = str(jax.make_jaxpr(lambda x: model(x, training=False))(data))
    return text.count("convert_element_type")


def squeezed(width=256, block=True):
    """A convolution whose channels are weighted by a small net, as in EfficientNet."""
    inputs = keras.Input((16, 16, 8))
    wide = layers.Conv2D(width, 3, padding="same", name="wide")(inputs)
    if block:
        pooled = layers.GlobalAveragePooling2D(keepdims=True)(wide)
        reduced = layers.Conv2D(8, 1, activation="relu", name="reduce")(pooled)
        weight = layers.Conv2D(width, 1, activation="sigmoid", name="expand")(reduced)
        wide = layers.Multiply()([wide, weight])
    wide = layers.Conv2D(width, 3, padding="same", name="wide2")(wide)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(wide)))


SCENE = np.random.default_rng(0).normal(size=(2, 16, 16, 8)).astype("float32")


class TestTooSmall:
    def test_flipping_it_changes_how_much_is_cast(self):
        model = squeezed()
        planned = keras_mp.plan(model, "mixed_bfloat16")
        small = [row.path for row in planned if row.code == "too-small"]
        assert small == ["reduce", "expand"]
        assert {planned[path].policy for path in small} == {"float32"}
        planned.apply(model)
        with_row = casts(model, SCENE)
        rules = dict.fromkeys(small, "mixed_bfloat16")
        keras_mp.plan(model, "mixed_bfloat16", rules=rules).apply(model)
        without = casts(model, SCENE)
        told = re.search(r"takes (\d+) casts here, float32 (\d+)", planned["reduce"].reason)
        half, wide = int(told[1]), int(told[2])
        assert (half, wide) == (4, 2)
        assert without - with_row == half - wide

    def test_a_first_layer_that_is_small(self):
        """Its inputs are float32 anyway."""
        inputs = keras.Input((2,))
        wide = layers.Dense(512)(layers.Dense(512)(layers.Dense(4, name="first")(inputs)))
        model = keras.Model(inputs, layers.Dense(1)(wide))
        planned = keras_mp.plan(model, "mixed_bfloat16")
        assert planned["first"].code == "too-small"
        data = np.ones((2, 2), "float32")
        planned.apply(model)
        with_row = casts(model, data)
        keras_mp.plan(model, "mixed_bfloat16", rules={"first": "mixed_bfloat16"}).apply(model)
        assert casts(model, data) - with_row == 2

    def test_one_alone_between_half_precision_neighbours_is_left(self):
        """Two casts either way: nothing to be won by float32."""
        inputs = keras.Input((64,))
        wide = layers.Dense(1024)(layers.Dense(1024, name="before")(inputs))
        thin = layers.Dense(1, name="thin")(wide)
        model = keras.Model(inputs, layers.Dense(1)(layers.Dense(1024)(thin)))
        assert "too-small" not in {row.code for row in keras_mp.plan(model, "mixed_bfloat16")}

    def test_nor_are_layers_with_a_share_of_the_work_or_of_the_values(self):
        assert "too-small" not in {r.code for r in keras_mp.plan(squeezed(block=False), "bf16")}
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1)])
        assert "too-small" not in {row.code for row in keras_mp.plan(model, "mixed_bfloat16")}

    def test_nor_where_the_graph_is_not_known_nor_in_float32(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.wide = layers.Dense(2), layers.Dense(4096)
                self.end = layers.Dense(1)

            def call(self, inputs):
                return self.end(self.wide(self.first(inputs)))

        model = Net()
        model(np.ones((1, 2)))
        assert "too-small" not in {row.code for row in keras_mp.plan(model, "mixed_bfloat16")}
        assert {row.code for row in keras_mp.plan(squeezed(), "float32")} == {"asked"}

    def test_a_rule_or_a_hazard_goes_before_it(self):
        rows = keras_mp.plan(squeezed(), "fp16", rules={"reduce": "mixed_float16"})
        assert (rows["reduce"].code, rows["reduce"].policy) == ("rule", "mixed_float16")

    def test_audit_says_so_of_a_model_in_half_precision(self):
        with keras_mp.policy_scope("mixed_bfloat16"):
            model = squeezed()
        model.get_layer("dense").dtype_policy = "float32"
        found = [(f.severity, f.code, f.layer) for f in keras_mp.audit(model)]
        assert found == [("warning", "too-small", "reduce"), ("warning", "too-small", "expand")]
        exec(next(iter(keras_mp.audit(model))).fix, {"model": model, "keras_mp": keras_mp})
        assert len(keras_mp.audit(model)) == 0


def tiles(k, n):
    """Multiplications of a product (8, k) by (k, n), and those of the 8x8x8 tiles it takes."""
    blocks = len(range(0, k, 8)) * len(range(0, n, 8))
    return 8 * k * n, blocks * 8 * 8 * 8


class TestAlignment:
    def build(self, units=1001, head=8):
        return keras.Sequential(
            [
                keras.Input((512,)),
                layers.Dense(units, "relu", name="body"),
                layers.Dense(512, name="next"),
                layers.Dense(head, name="end"),
            ]
        )

    def test_the_share_of_padding_is_what_the_tiles_say(self):
        for units in (1, 7, 8, 9, 100, 1001, 1008, 50257):
            needed, done = tiles(512, units)
            assert padding(units) == pytest.approx(1 - needed / done)

    def test_following_it_takes_the_padding_away(self):
        model = self.build()
        planned = keras_mp.plan(model, "mixed_float16", device="T4")
        row = planned["body"]
        assert (row.code, row.policy) == ("alignment", "mixed_float16")
        assert "units=1001 is no multiple of 8" in row.reason and "0.7% is padding" in row.reason
        (finding,) = [f for f in keras_mp.audit(model, "fp16", device="T4") if f.layer == "body"]
        assert (finding.severity, finding.code) == ("warning", "alignment")
        made = eval(finding.fix.partition("  #")[0], {"keras": keras, "model": model})
        assert (made.units, made.activation) == (1008, keras.activations.relu)
        better = self.build(made.units)
        for model, aligned in ((self.build(), False), (better, True)):
            needed, done = tiles(512, model.get_layer("body").units)
            assert (needed == done) == aligned
            codes = {row.code for row in keras_mp.plan(model, "mixed_float16", device="T4")}
            assert ("alignment" in codes) != aligned

    @pytest.mark.parametrize("device", ["P100", "cpu", "tpu", None])
    def test_it_is_not_given_without_tensor_cores(self, device):
        planned = keras_mp.plan(self.build(), "mixed_float16", device=device)
        assert planned["body"].code == "product"

    def test_it_is_not_given_in_float32_nor_to_a_layer_without_weight(self):
        planned = keras_mp.plan(self.build(), "mixed_float16", device="T4", rules={"body": "fp32"})
        assert planned["body"].code == "rule"
        assert keras_mp.plan(self.build(), "float32", device="T4")["body"].code == "asked"
        model = keras.Sequential(
            [keras.Input((512,)), layers.Dense(4096), layers.Dense(1, name="s"), layers.Dense(2)]
        )
        assert keras_mp.plan(model, "mixed_float16", device="T4")["s"].code == "product"

    @pytest.mark.parametrize(
        ("layer", "name"),
        [
            (layers.LSTM(100), "units"),
            (layers.Conv1D(100, 3), "filters"),
            (layers.MultiHeadAttention(4, 33), "key_dim"),
            (layers.Embedding(32, 100), "output_dim"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_every_kind_of_width_is_looked_at(self, layer, name):
        inputs = keras.Input((16, 64))
        if isinstance(layer, layers.Embedding):
            inputs = keras.Input((16,), dtype="int32")
        called = layer(inputs, inputs) if "Attention" in type(layer).__name__ else layer(inputs)
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(called)))
        row = keras_mp.plan(model, "mixed_bfloat16", device="A100")[layer.name]
        assert row.code == "alignment" and f"{name}=" in row.reason

    def test_an_unknown_device_lists_the_known_ones(self):
        for call in (keras_mp.plan, keras_mp.audit):
            with pytest.raises(ValueError, match="H200"):
                call(self.build(), "mixed_float16", device="A9000")

    def test_the_commands_take_the_device(self, tmp_path, capsys):
        path = str(tmp_path / "model.keras")
        self.build().save(path)
        command = [path, "--policy", "mixed_float16", "--device", "T4"]
        assert main(["audit", *command]) == 1
        assert "units=1001" in capsys.readouterr().out
        assert main(["plan", *command]) == 0
        assert "units=1001" in capsys.readouterr().out
        assert main(["plan", path, "--device", "T4"]) == 0
        assert "mixed_float16" in capsys.readouterr().out
        assert main(["plan", path, "--device", "A9000"]) == 2
        assert "H200" in capsys.readouterr().err


class TestWork:
    """Multiplications of a forward pass, against published counts and counts by hand."""

    def total(self, model):
        return sum(work_of(place).products for place in structure_of(model).places)

    def test_resnet50_is_3_86_billion(self):
        """He et al. 2015, table 1: 3.8e9."""
        model = keras.applications.ResNet50(weights=None)
        assert self.total(model) == pytest.approx(3.86e9, rel=0.01)

    @pytest.mark.parametrize(
        ("layer", "shape", "products"),
        [
            (layers.Dense(3), (5,), 15),
            (layers.Dense(3), (4, 5), 60),
            (layers.EinsumDense("abc,cd->abd", (4, 3)), (4, 5), 60),
            (layers.Conv2D(6, 3), (8, 8, 2), 6 * 6 * 3 * 3 * 2 * 6),
            (layers.Conv2D(6, 3, groups=2), (8, 8, 2), 6 * 6 * 3 * 3 * 1 * 6),
            (layers.Conv2DTranspose(6, 3), (8, 8, 2), 8 * 8 * 3 * 3 * 2 * 6),
            (layers.SeparableConv2D(6, 3), (8, 8, 2), 6 * 6 * (9 * 2 + 2 * 6)),
            (layers.LSTM(4), (10, 3), 10 * (3 + 4) * 16),
            (layers.Bidirectional(layers.GRU(4)), (10, 3), 2 * 10 * (3 + 4) * 12),
            (layers.ReLU(), (5,), 0),
            (layers.LayerNormalization(), (5,), 0),
        ],
        ids=lambda value: getattr(value, "name", None),
    )
    def test_by_hand(self, layer, shape, products):
        inputs = keras.Input(shape)
        model = keras.Model(inputs, layer(inputs))
        assert self.total(model) == with_parts(structure_of(model).root).products == products

    def test_attention_counts_its_scores(self):
        tokens = keras.Input((10, 8))
        model = keras.Model(tokens, layers.MultiHeadAttention(2, 4)(tokens, tokens))
        assert self.total(model) == 4 * 10 * 8 * 8 + 2 * 2 * 4 * 10 * 10
