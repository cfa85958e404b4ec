"""What layers of Keras 3.15 do wrong in half precision, each with what cures it.

An entry under a plan's name is one that no plan cures. All figures are those of CPUs.
"""

from sweep.known import BF16, EVERY, F16, HALF, PLAN_BF16, PLAN_F16, known

DEFAULT = "ordinary large tiny zeros"
BOTH_F16 = (F16, PLAN_F16)
BOTH_BF16 = (BF16, PLAN_BF16)

KNOWN_LAYERS = [
    # Squares and sums in float16.
    known(
        "UnitNormalization",
        F16,
        "large tiny zeros constant",
        "squares and sums in float16: above 256 infinite, below 2^-12 zero",
        "plan: unit-norm",
    ),
    known(
        "UnitNormalization-long",
        F16,
        "ordinary",
        "the gradient's squares and sums are in float16",
        "plan: unit-norm",
        ("torch", "tensorflow"),
    ),
    known(
        "Dot-normalize",
        F16,
        "large tiny zeros",
        "squares and sums in float16, as UnitNormalization",
        "plan: unit-norm",
    ),
    known(
        "AdaptiveAveragePooling3D",
        F16,
        "large",
        "sums its windows in float16",
        "plan: mean-pooling",
        "torch",
    ),
    known(
        "GlobalAveragePooling1D-long-mask GlobalAveragePooling1D-long-full-mask",
        F16,
        "large",
        "sums the unmasked positions in float16",
        "plan: mean-pooling",
        "torch",
    ),
    known(
        "GlobalAveragePooling1D-long-mask GlobalAveragePooling1D-long-full-mask",
        F16,
        "ordinary large",
        "sums the unmasked positions in float16",
        "plan: mean-pooling",
        "tensorflow",
    ),
    known(
        "AveragePooling1D-long AveragePooling2D-long",
        F16,
        "ordinary large",
        "TensorFlow sums the window in float16",
        "plan: mean-pooling",
        "tensorflow",
    ),
    known(
        "Conv3DTranspose",
        BOTH_BF16,
        DEFAULT,
        "TensorFlow's CPU kernel sums the bias' gradient over 768 positions in bfloat16",
        "use_bias=False, or the layer in float32 by a rule",
        "tensorflow",
    ),
    known(
        "AveragePooling1D-long",
        BF16,
        "ordinary",
        "XLA sums the window in bfloat16",
        "plan: mean-pooling",
        "jax",
    ),
    known(
        "AveragePooling2D-long",
        HALF,
        "ordinary",
        "XLA sums the window in half precision",
        "plan: mean-pooling",
        "jax",
    ),
    known(
        "Conv3D",
        BOTH_F16,
        "large",
        "a sum near float16's end is infinite in some runs: TensorFlow's kernel splits it",
        "normalize what goes in",
        "tensorflow",
        always=False,
    ),
    known(
        "ConvLSTM3D",
        BOTH_BF16,
        "ordinary large",
        "TensorFlow's CPU kernel sums the bias' gradient in bfloat16, in some runs further off",
        "mixed_float16",
        "tensorflow",
        always=False,
    ),
    # Attention.
    known(
        "Attention-empty-mask",
        F16,
        "ordinary large",
        "masks by adding -65,504: with a negative score that is -inf, and the row NaN",
        "plan: attention-mask",
        "torch",
    ),
    known(
        "Attention-mask Attention-full-mask",
        F16,
        "large",
        "scores of 2^13 squared are no float16 numbers",
        "plan: attention-mask",
        "torch",
    ),
    known(
        "AdditiveAttention-empty-mask",
        F16,
        "ordinary large",
        "masks by adding -65,504, as Attention",
        "plan: attention-mask",
        "torch",
    ),
    known(
        "Attention-mask Attention-full-mask Attention-empty-mask",
        BOTH_F16,
        "large",
        "scores of 2^13 squared are no float16 numbers; ordinary ones are right",
        "normalize what goes in; the layer in float32 by a rule",
        "tensorflow",
    ),
    known(
        "MultiHeadAttention-empty-mask MultiHeadAttention-value-empty-mask "
        "GroupQueryAttention-empty-mask GroupQueryAttention-value-empty-mask",
        BOTH_F16,
        "ordinary",
        "torch's fused attention gives 0 for a row that is masked throughout, in float32 the mean: "
        "finite both, and neither means anything",
        "mask the output",
        "torch",
    ),
    known(
        "Attention-mask Attention-full-mask Attention-empty-mask",
        PLAN_F16,
        "large",
        "values are right; the gradient of weights that are 0 or 1 meets an infinite product of "
        "cotangents and values, until the loss scale has come down",
        "the loss scale's own back-off",
        "torch",
    ),
    # Activations that cancel, saturate or square.
    known(
        "Activation-sigmoid",
        EVERY,
        "large",
        "the gradient comes from the rounded output, y (1 - y): 0 beyond 8.3 (bfloat16: 6.2)",
        "float32 where it matters, at the end of a model, where the plan puts it",
        ("torch", "tensorflow"),
    ),
    known(
        "Activation-mish",
        BOTH_F16,
        "large",
        "on its way the gradient is what comes back times the input: infinite past 65,504, where "
        "the gradient itself is not",
        "the loss scale's own back-off",
        ("torch", "tensorflow"),
    ),
    known(
        "Activation-gelu",
        BOTH_F16,
        "large",
        "as mish",
        "the loss scale's own back-off",
        "tensorflow",
    ),
    known(
        "Activation-squareplus",
        HALF,
        "large",
        "squares: infinite above 256 in float16, and x + sqrt(x^2) cancels below zero",
        "plan: activation",
        ("torch", "tensorflow"),
    ),
    known(
        "Activation-tanh_shrink",
        HALF,
        "ordinary tiny",
        "x - tanh(x) cancels near zero",
        "plan: activation",
        ("torch", "tensorflow"),
    ),
    known(
        "Activation-selu ELU",
        EVERY,
        "tiny",
        "TensorFlow computes exp(x) - 1 in half: zero below half a unit roundoff, which is less "
        "than what half precision rounds next to it",
        "none is needed; the layer in float32 by a rule",
        "tensorflow",
    ),
    # What a backend has not.
    known("AveragePooling3D", HALF, DEFAULT, "no kernel on CPUs", "plan: no-kernel", "torch"),
    known(
        "AveragePooling3D MaxPooling3D AdaptiveAveragePooling3D AdaptiveMaxPooling3D",
        F16,
        DEFAULT,
        "no kernel on CPUs",
        "plan: no-kernel",
        "tensorflow",
    ),
    known(
        "UpSampling2D-bicubic",
        HALF,
        DEFAULT,
        "no gradient at all: the layers before it do not train, and nothing says so",
        "plan: no-gradient",
        "tensorflow",
    ),
    known(
        "UpSampling2D-lanczos3",
        HALF,
        DEFAULT,
        "its gradient raises",
        "plan: no-gradient",
        "tensorflow",
    ),
    # State.
    known(
        "SpectralNormalization",
        HALF,
        DEFAULT,
        "what a layer assigns to a float32 variable while it computes in half is lost: the kernel "
        "is never normalized",
        "plan: lost-state",
        "torch",
    ),
    known("SpectralNormalization-long", HALF, "ordinary", "as above", "plan: lost-state", "torch"),
    # Raw features.
    known(
        "Normalization-prices Normalization-small Rescaling-prices",
        F16,
        "ordinary ",
        "features are cast before they are normalized: 120,000 is no number there, nor 1e-10",
        "plan: raw-input",
    ),
    known(
        "STFTSpectrogram-log STFTSpectrogram-magnitude",
        F16,
        "large tiny zeros",
        "squares of the spectrum in float16",
        "plan: raw-input",
    ),
    known(
        "STFTSpectrogram-log STFTSpectrogram-magnitude STFTSpectrogram-real",
        BF16,
        DEFAULT,
        "raises: no Fourier transform in bfloat16",
        "plan: raw-input",
    ),
    known(
        "CutMix",
        HALF,
        "ordinary",
        "raises: no Dirichlet samples in half",
        "plan: raw-input",
        "torch",
    ),
    known(
        "CutMix",
        BF16,
        "ordinary",
        "raises: mixes bfloat16 and float32",
        "plan: raw-input",
        "tensorflow",
    ),
    known(
        "MixUp",
        HALF,
        "ordinary",
        "raises: mixes half and float32 labels",
        "plan: raw-input",
        "tensorflow",
    ),
    known(
        "CategoryEncoding-weights",
        HALF,
        DEFAULT,
        "raises: counts no half weights",
        "plan: raw-input",
        "tensorflow",
    ),
]
