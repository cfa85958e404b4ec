"""Recurrent layers and attention: how to make one, what goes in."""

from keras import layers as L
from sweep.cases import Floats, case
from sweep.layer_shapes import SEQUENCE, STEPS, masked


def recurrent():
    out = {}
    for name in ("LSTM", "GRU", "SimpleRNN"):
        layer = getattr(L, name)
        make = (lambda c: lambda **k: c(5, **k))(layer)
        out[name] = [
            case(make, SEQUENCE, roundings=STEPS, magnitudes=("ordinary", "large", "tiny")),
            case(
                (lambda m: lambda: m(return_sequences=True, return_state=True, go_backwards=True))(
                    make
                ),
                SEQUENCE,
                roundings=STEPS,
                label="all",
                magnitudes=("ordinary",),
            ),
            case(
                (lambda m: lambda: m(recurrent_dropout=0.3, dropout=0.2, seed=1))(make),
                SEQUENCE,
                label="dropout",
                random=True,
                magnitudes=("ordinary",),
            ),
            *masked(make, SEQUENCE, (2, 6), roundings=STEPS, magnitudes=("ordinary",)),
            case(
                (lambda m: lambda: m(stateful=True))(make),
                SEQUENCE,
                roundings=STEPS,
                label="stateful",
                magnitudes=("ordinary",),
                gradient=False,
            ),
            case(make, (2, 30, 4), roundings=5 * STEPS, label="long", magnitudes=("ordinary",)),
        ]
        cell = getattr(L, f"{name}Cell")
        out[f"{name}Cell"] = [
            case(
                (lambda c: lambda: L.RNN(c(5)))(cell),
                SEQUENCE,
                roundings=STEPS,
                magnitudes=("ordinary",),
            ),
            *masked(
                (lambda c: lambda: L.RNN(c(5)))(cell),
                SEQUENCE,
                (2, 6),
                roundings=STEPS,
                magnitudes=("ordinary",),
            ),
        ]
    out["GRU"].append(
        case(
            lambda: L.GRU(5, reset_after=False),
            SEQUENCE,
            roundings=STEPS,
            label="reset-before",
            magnitudes=("ordinary",),
        )
    )
    # What the 3-D one gives must be as deep as its kernel: under that torch's bfloat16 kernel reads
    # memory that is not its own. `wrong-kernel` of keras_mp/policies/gaps.py has the story.
    for d, shape in ((1, (2, 3, 6, 2)), (2, (2, 3, 5, 5, 2)), (3, (1, 2, 5, 4, 4, 2))):
        layer = getattr(L, f"ConvLSTM{d}D")
        out[layer.__name__] = [
            case(
                (lambda c: lambda: c(2, 3))(layer),
                shape,
                roundings=STEPS,
                magnitudes=("ordinary", "large"),
            ),
        ]
    out["ConvLSTM2D"].append(
        case(
            lambda: L.ConvLSTM2D(2, 3, stateful=True),
            (2, 3, 5, 5, 2),
            roundings=STEPS,
            label="stateful",
            magnitudes=("ordinary",),
            gradient=False,
        )
    )
    out["RNN"] = [
        case(
            lambda: L.RNN(L.GRUCell(5), unroll=True),
            SEQUENCE,
            roundings=STEPS,
            magnitudes=("ordinary",),
        )
    ]
    out["StackedRNNCells"] = [
        case(
            lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(4), L.GRUCell(3)])),
            SEQUENCE,
            roundings=2 * STEPS,
            magnitudes=("ordinary",),
        )
    ]
    out["Bidirectional"] = [
        case(
            lambda: L.Bidirectional(L.GRU(3)), SEQUENCE, roundings=STEPS, magnitudes=("ordinary",)
        ),
        *masked(
            lambda: L.Bidirectional(L.LSTM(3), merge_mode="sum"),
            SEQUENCE,
            (2, 6),
            roundings=STEPS,
            magnitudes=("ordinary",),
        ),
    ]
    return out


def attention():
    """Logits of up to 36 * 9 * 8 stand under "large" inputs: 2^13 squared is no float16 number."""
    out = {}
    query, keys = Floats((2, 4, 8)), Floats((2, 5, 8))
    sharp = Floats((2, 4, 8), fixed=True, low=-30, high=30)
    plain = ("ordinary", "zeros")
    for name, make in (("Attention", L.Attention), ("AdditiveAttention", L.AdditiveAttention)):
        own = {"roundings": 8, "magnitudes": plain}
        out[name] = [
            case(make, query, keys, **own),
            case(
                make,
                sharp,
                Floats((2, 5, 8), fixed=True, low=-8, high=8),
                label="sharp",
                roundings=8,
                magnitudes=("ordinary",),
            ),
            *masked(
                make,
                None,
                (2, 5),
                inputs=(query, keys),
                roundings=8,
                magnitudes=("ordinary", "large"),
                call=lambda a, q, v, m: a([q, v], mask=[None, m]),
            ),
        ]
    out["Attention"].append(
        case(
            lambda: L.Attention(use_scale=True),
            query,
            keys,
            label="causal",
            roundings=8,
            magnitudes=plain,
            call=lambda a, q, v: a([q, v], use_causal_mask=True),
        )
    )
    for name, make in (
        ("MultiHeadAttention", lambda **k: L.MultiHeadAttention(2, 4, **k)),
        ("GroupQueryAttention", lambda **k: L.GroupQueryAttention(4, 4, 2, **k)),
    ):
        call = lambda a, q, v: a(q, v)  # noqa: E731
        bias = {"roundings": 16, "vanishing": (5,)}  # the keys' bias moves all logits of a row
        out[name] = [
            case(make, query, keys, call=call, **bias, magnitudes=plain),
            case(make, sharp, sharp, call=call, **bias, label="sharp", magnitudes=("ordinary",)),
            case(
                make,
                query,
                query,
                **bias,
                label="causal",
                magnitudes=("ordinary",),
                call=lambda a, q, v: a(q, v, use_causal_mask=True),
            ),
            case(
                make,
                query,
                keys,
                **bias,
                label="scores",
                magnitudes=("ordinary",),
                call=lambda a, q, v: a(q, v, return_attention_scores=True),
            ),
            *masked(
                make,
                None,
                (2, 4, 5),
                inputs=(query, keys),
                **bias,
                magnitudes=("ordinary",),
                call=lambda a, q, v, m: a(q, v, attention_mask=m),
            ),
            *masked(
                make,
                None,
                (2, 5),
                inputs=(query, keys),
                **bias,
                magnitudes=("ordinary",),
                label="value-",
                call=lambda a, q, v, m: a(q, v, value_mask=m),
            ),
        ]
    return out
