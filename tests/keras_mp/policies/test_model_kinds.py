"""Models as the ecosystem builds them: Keras Applications, and KerasHub's ways of making models.

KerasHub's are written here: a backbone that is a Functional with arguments of its own in
``get_config``, blocks that make their layers in ``build``, tied embeddings, a task around the
backbone with an ``end`` of its own, low-rank adapters in place of a layer's kernel.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.policies.structure import structure_of

pytestmark = pytest.mark.backend
register = keras.saving.register_keras_serializable("test_model_kinds")


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


@register
class ReversibleEmbedding(layers.Embedding):
    """Tied weights: ids to vectors, and vectors to logits."""

    def call(self, inputs, reverse=False):
        if reverse:
            return ops.matmul(inputs, ops.transpose(ops.convert_to_tensor(self.embeddings)))
        return super().call(inputs)


@register
class Block(layers.Layer):
    """A transformer's block; its layers are made in ``build``, with its own policy handed down."""

    def __init__(self, heads=2, inner=32, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.inner = heads, inner

    def build(self, shape):
        width = shape[-1]
        make = {"dtype": self.dtype_policy}
        self.attention = layers.MultiHeadAttention(
            self.heads, width // self.heads, name="attention", **make
        )
        self.attention.build(shape, shape)
        self.norm = layers.LayerNormalization(epsilon=1e-5, name="norm", **make)
        self.norm.build(shape)
        self.up = layers.Dense(self.inner, "gelu", name="up", **make)
        self.up.build(shape)
        self.down = layers.Dense(width, name="down", **make)
        self.down.build((*shape[:-1], self.inner))

    def call(self, inputs):
        hidden = inputs + self.attention(inputs, inputs)
        return inputs + self.down(self.up(self.norm(hidden)))

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):
        return super().get_config() | {"heads": self.heads, "inner": self.inner}


@register
class Backbone(keras.Model):
    def __init__(self, vocabulary, width, depth, dtype=None, **kwargs):
        tokens = keras.Input((None,), dtype="int32", name="tokens")
        embedding = ReversibleEmbedding(vocabulary, width, dtype=dtype, name="token_embedding")
        hidden = embedding(tokens)
        for number in range(depth):
            hidden = Block(dtype=dtype, name=f"block_{number}")(hidden)
        hidden = layers.LayerNormalization(dtype=dtype, name="last_norm")(hidden)
        super().__init__(inputs=tokens, outputs=hidden, **kwargs)
        self.vocabulary, self.width, self.depth = vocabulary, width, depth
        self.token_embedding = embedding

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "vocabulary": self.vocabulary,
            "width": self.width,
            "depth": self.depth,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


@register
class Classifier(keras.Model):
    """A task: the backbone's graph goes on into a head."""

    def __init__(self, backbone, classes, **kwargs):
        inputs = backbone.input
        pooled = layers.GlobalAveragePooling1D(name="pool")(backbone(inputs))
        outputs = layers.Dense(classes, "softmax", name="head")(pooled)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.backbone, self.classes = backbone, classes

    def get_config(self):
        backbone = keras.saving.serialize_keras_object(self.backbone)
        return {"name": self.name, "backbone": backbone, "classes": self.classes}

    @classmethod
    def from_config(cls, config):
        config["backbone"] = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(**config)


@register
class Writer(keras.Model):
    """A task that is subclassed, with tied logits."""

    def __init__(self, backbone, **kwargs):
        super().__init__(**kwargs)
        self.backbone = backbone

    def call(self, tokens):
        return self.backbone.token_embedding(self.backbone(tokens), reverse=True)

    def get_config(self):
        return {
            "name": self.name,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
        }

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["backbone"]), name=config["name"])


TOKENS = np.random.default_rng(0).integers(50, size=(2, 6))
PICTURE = np.random.default_rng(0).uniform(0, 255, size=(2, 32, 32, 3)).astype("float32")


def classifier():
    return Classifier(Backbone(50, 16, 2, name="backbone"), 4, name="classifier")


def writer():
    model = Writer(Backbone(50, 16, 2, name="backbone"), name="writer")
    model(TOKENS)
    return model


def application(name, **kwargs):
    def build():
        made = getattr(keras.applications, name)
        return made(weights=None, input_shape=(32, 32, 3), classes=4, **kwargs)

    return build


SMALL = {"classifier": (classifier, TOKENS), "writer": (writer, TOKENS)}
APPLICATIONS = {
    "MobileNetV2": (application("MobileNetV2", alpha=0.35), PICTURE),
    "ResNet50": (application("ResNet50"), PICTURE),
    "EfficientNetB0": (application("EfficientNetB0"), PICTURE),
}


def there_and_back(build, data, tmp_path):
    """Everything that issue 4 promises of any model, on one."""
    model = build()
    weights = [numbers(v) for v in model.variables if "seed" not in v.path]
    exact = model.predict(data, verbose=0)
    found = {finding.layer for finding in keras_mp.audit(model, "mixed_bfloat16")}
    planned = keras_mp.plan(model, "mixed_bfloat16", data)
    assert all(row.reason for row in planned)
    assert {row.path for row in planned} >= found
    assert any(row.policy == "mixed_bfloat16" and row.code == "product" for row in planned)
    assert any(row.measured is not None and row.measured.largest for row in planned)
    mixed = keras_mp.convert(model, planned)
    computing = {place.layer.compute_dtype for place in structure_of(mixed).places}
    assert "bfloat16" in computing
    kept = [numbers(v) for v in mixed.variables if "seed" not in v.path]
    assert len(kept) == len(weights) > 0
    assert all(np.array_equal(a, b) for a, b in zip(weights, kept, strict=True))
    spread = np.abs(exact).max()
    assert np.abs(mixed.predict(data, verbose=0) - exact).max() < 0.1 * spread
    assert np.isfinite(mixed.predict(data, verbose=0)).all()
    assert not [f for f in keras_mp.audit(mixed) if f.code != "alignment"]
    keras_mp.save_model(mixed, tmp_path / "mixed.keras")
    loaded = keras_mp.load_model(tmp_path / "mixed.keras")
    assert np.array_equal(loaded.predict(data, verbose=0), mixed.predict(data, verbose=0))
    back = keras_mp.convert(loaded, "float32")
    assert np.array_equal(back.predict(data, verbose=0), exact)
    assert np.array_equal(model.predict(data, verbose=0), exact)  # and the original is as it was


@pytest.mark.parametrize(("build", "data"), SMALL.values(), ids=SMALL)
def test_models_in_kerashubs_ways(build, data, tmp_path):
    there_and_back(build, data, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="torch and tensorflow tell; jax compiles for minutes"
)
@pytest.mark.parametrize(("build", "data"), APPLICATIONS.values(), ids=APPLICATIONS)
def test_keras_applications(build, data, tmp_path):
    there_and_back(build, data, tmp_path)


def test_adapters_that_a_file_would_add_up_are_not_lost_in_silence():
    model = classifier()
    for place in structure_of(model).places:
        if place.path.endswith("up"):
            place.layer.enable_lora(2)
    with pytest.raises(ValueError, match=r"adapters.*plan\.apply.*37 weights, and 33"):
        keras_mp.convert(model, "mixed_bfloat16")
    exact = model.predict(TOKENS, verbose=0)
    keras_mp.plan(model, "mixed_bfloat16").apply(model)
    assert len(model.weights) == 37
    assert model.predict(TOKENS, verbose=0) == pytest.approx(exact, abs=0.02)


def test_a_tied_embedding_of_ones_own_has_one_row_and_a_rule_can_change_it():
    """It is one layer with one policy, and its logits leave the model: float32."""
    path = "backbone/token_embedding"
    model = writer()
    row = keras_mp.plan(model, "mixed_bfloat16")[path]
    assert (row.policy, row.code) == ("float32", "output")
    keras_mp.plan(model, "mixed_bfloat16").apply(model)
    assert model.predict(TOKENS, verbose=0).dtype == np.float32
    planned = keras_mp.plan(model, "mixed_bfloat16", rules={path: "mixed_bfloat16"})
    assert planned[path].code == "rule"


def test_keras_tied_embedding_multiplies_in_half_precision_and_gives_float32():
    tokens = keras.Input((8,), dtype="int32")
    table = layers.ReversibleEmbedding(256, 16, name="table")
    inner = layers.Dense(16, name="body")(table(tokens))
    model = keras.Model(tokens, table(inner, reverse=True))
    data = np.arange(16).reshape(2, 8)
    exact = model.predict(data, verbose=0)
    for replace, code in ((True, "wide-output"), (False, "output"), (True, "wide-output")):
        planned = keras_mp.plan(model, "mixed_bfloat16", replace=replace)
        assert planned["table"].code == code
        planned.apply(model)
        assert len(keras_mp.audit(model)) == 0
        assert (table.compute_dtype == "float32") == (code == "output")
        logits = model.predict(data, verbose=0)
        assert logits.dtype == np.float32
        assert logits == pytest.approx(exact, abs=0.05)
    keras_mp.plan(model, "float32").apply(model)
    assert np.array_equal(model.predict(data, verbose=0), exact)
    assert type(table) is layers.ReversibleEmbedding


def test_every_layer_of_a_nested_backbone_has_its_row():
    rows = {row.path: row.policy for row in keras_mp.plan(classifier(), "mixed_float16")}
    for name in ("attention", "attention/query", "norm", "up", "down"):
        assert f"backbone/block_1/{name}" in rows
    assert rows["backbone/block_1/up"] == "mixed_float16"
    assert rows["head"] == "float32"
