"""Raw numbers on their way to the layer that needs them: a model that is right in float32 is right
when planned, wrong when the rows of the way are flipped; and rows that need not be there are not.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp

pytestmark = pytest.mark.backend

IDS = np.array([[2049.0, 2909.0, 4001.0]], "float32")
# Past float16's end; and bfloat16 rounds all of them up, by 960 together.
PRICES = np.array([[100_100.0, 120_100.0, 139_800.0]], "float32")
POLICIES = ["mixed_float16", "mixed_bfloat16"]


def table(words=5000):
    """Each id's last two digits."""
    rows = (np.arange(words) % 100).reshape(-1, 1).astype("float32")
    return layers.Embedding(words, 1, embeddings_initializer=lambda shape, dtype: rows)


def total(**options):
    return layers.Dense(1, kernel_initializer="ones", **options)


@keras.saving.register_keras_serializable("test_raw")
class Words(layers.Layer):
    """A layer that holds an embedding, and casts its inputs before it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shape, self.table = layers.Reshape((3,)), table()

    def call(self, inputs):
        return self.table(self.shape(inputs))


class Reader(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.end = table(), total()

    def call(self, inputs):
        return self.end(self.words(inputs))


class Market(keras.Model):
    def __init__(self):
        super().__init__()
        self.flat, self.scale, self.end = (
            layers.Flatten(),
            layers.Rescaling(5e-5, offset=-6.0),
            total(),
        )

    def call(self, inputs):
        return self.end(self.scale(self.flat(inputs)))


def chain(*parts, size=3, dtype=None):
    inputs = tensor = keras.Input((size,), dtype=dtype)
    for part in parts:
        tensor = part(tensor)
    return keras.Model(inputs, tensor)


def built(model, data):
    model(data)
    return model


def ids_through_a_shape():
    return chain(layers.Reshape((3, 1)), layers.Flatten(), table(), total())


def ids_in_a_layer():
    return chain(layers.Reshape((3, 1)), Words(), total())


def ids_in_a_model():
    return built(Reader(), IDS)


def prices_through_shapes_and_merges():
    inputs = keras.Input((3,))
    both = layers.Concatenate()([layers.Reshape((3,))(inputs), layers.Dropout(0.1)(inputs)])
    return keras.Model(inputs, total()(layers.Normalization(mean=1.2e5, variance=4e8)(both)))


def prices_by_time_steps():
    scale = layers.TimeDistributed(layers.Rescaling(5e-5, offset=-6.0))
    return chain(layers.Reshape((3, 1)), scale, layers.Flatten(), total())


def prices_into_batch_statistics():
    norm = layers.BatchNormalization(
        moving_mean_initializer=keras.initializers.Constant(1.2e5),
        moving_variance_initializer=keras.initializers.Constant(4e8),
    )
    return chain(layers.Reshape((3,)), norm, total())


def prices_into_code():
    return chain(layers.Lambda(lambda x: (x - 1.2e5) / 2e4 + 1.0), total())


def prices_in_an_inner_model():
    first = chain(layers.Flatten())
    second = chain(layers.Reshape((3,)), layers.Rescaling(5e-5, offset=-6.0))
    return chain(first, second, total())


def prices_in_a_subclassed_model():
    return built(Market(), PRICES)


CASES = [
    (ids_through_a_shape, IDS),
    (ids_in_a_layer, IDS),
    (ids_in_a_model, IDS),
    (prices_through_shapes_and_merges, PRICES),
    (prices_by_time_steps, PRICES),
    (prices_into_batch_statistics, PRICES),
    (prices_into_code, PRICES),
    (prices_in_an_inner_model, PRICES),
    (prices_in_a_subclassed_model, PRICES),
]


def value(model, data):
    return float(np.asarray(ops.convert_to_numpy(ops.cast(model(data), "float32"))).ravel()[0])


def raw_rows(planned):
    return [row for row in planned if row.code == "raw-input"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("build", "data"), CASES, ids=[build.__name__ for build, _ in CASES])
def test_it_changes_what_comes_out(build, data, policy):
    model = build()
    exact = value(model, data)
    planned = keras_mp.plan(model, policy)
    planned.apply(model)
    assert value(model, data) == pytest.approx(exact, abs=0.02)
    flip = {row.path: policy for row in raw_rows(planned)}
    assert flip
    keras_mp.plan(model, policy, rules=flip, replace=False).apply(model)
    assert abs(value(model, data) - exact) > 0.02 or not np.isfinite(value(model, data))


def test_the_sentence_says_who_needs_the_numbers():
    rows = {row.layer: row.reason for row in keras_mp.plan(ids_through_a_shape(), "mixed_float16")}
    assert rows["Reshape"].startswith("hands ids on to embedding as floats: float16 rounds those")
    planned = keras_mp.plan(prices_by_time_steps(), "mixed_bfloat16")
    rows = {row.layer: row.reason for row in planned}
    assert rows["Reshape"].startswith("hands raw features on to time_distributed/rescaling")


def test_audit_finds_it_in_a_model_that_was_built_so():
    with keras_mp.policy_scope("mixed_bfloat16"):
        model = chain(layers.Reshape((3,), name="shape"), table(), total(dtype="float32"))
    found = [(finding.layer, finding.code, finding.severity) for finding in keras_mp.audit(model)]
    assert found == [("shape", "raw-input", "error")]


class TestWhereItMustNotBe:
    """What is cast there is no raw number, or is exact."""

    def none(self, model, policy="mixed_float16"):
        assert raw_rows(keras_mp.plan(model, policy)) == []
        assert "raw-input" not in {finding.code for finding in keras_mp.audit(model, policy)}

    def test_integer_ids_which_nobody_casts(self):
        self.none(chain(layers.Reshape((3,)), table(), total(), dtype="int32"))

    def test_few_ids(self):
        self.none(chain(layers.Reshape((3,)), table(2049), total()))
        self.none(chain(layers.Reshape((3,)), table(257), total()), "mixed_bfloat16")

    def test_batch_statistics_inside(self):
        self.none(chain(layers.Dense(3), layers.BatchNormalization(), total()))
        block = chain(layers.BatchNormalization(), layers.Dense(3))
        self.none(chain(layers.Dense(3), block, total()))

    def test_code_inside(self):
        self.none(chain(layers.Dense(3), layers.Lambda(lambda x: x * 2), total()))

    def test_shapes_behind_what_makes_numbers_small(self):
        model = chain(layers.Dense(3), layers.Reshape((3,)), layers.Rescaling(2.0), total())
        assert [row.layer for row in raw_rows(keras_mp.plan(model, "mixed_float16"))] == [
            "Rescaling"
        ]

    def test_shapes_of_inputs_that_a_product_takes(self):
        self.none(chain(layers.Reshape((3,)), total()))

    def test_a_model_whose_own_weights_follow_its_policy(self):
        class Positions(Reader):
            def build(self, shape):
                self.positions = self.add_weight(shape=(shape[-1], 1), name="positions")

            def call(self, inputs):
                return self.end(self.words(inputs) + self.positions)

        self.none(built(Positions(), IDS.astype("int32")))

    def test_a_model_of_words_is_no_finding(self):
        """Its ids may come as floats, so a plan does not let it cast them; mostly they do not."""

        class Shaped(keras.Model):
            def __init__(self):
                super().__init__()
                self.shape, self.words, self.end = layers.Reshape((3,)), table(), total()

            def call(self, inputs):
                return self.end(self.words(self.shape(inputs)))

        for model in (ids_in_a_model(), built(Shaped(), IDS)):
            assert raw_rows(keras_mp.plan(model, "mixed_float16"))[0].path == ""
            assert "raw-input" not in {one.code for one in keras_mp.audit(model, "mixed_float16")}
