"""From 16-bit fixed point to float8: what came when, each with the place where it stands."""

EVENTS: tuple[tuple[str, str, str], ...] = (
    (
        "2015",
        "Gupta and others train nets in 16-bit fixed point; stochastic rounding makes it work.",
        "arXiv:1502.02551",
    ),
    (
        "2016",
        "NVIDIA's Pascal P100 computes float16 at twice float32's rate, without tensor cores.",
        "NVIDIA, Tesla P100 whitepaper",
    ),
    (
        "2017",
        "Volta V100 brings tensor cores: float16 products, float32 sums. The paper on mixed "
        "precision training appears in October: master weights, loss scaling, float32 sums.",
        "NVIDIA, Tesla V100 whitepaper; arXiv:1710.03740",
    ),
    (
        "2018",
        "The paper is presented at ICLR. NVIDIA's Apex brings its recipe to PyTorch, with "
        "dynamic loss scaling.",
        "github.com/NVIDIA/apex",
    ),
    (
        "2019",
        "A study of bfloat16, the TPU's format with float32's range: no loss scaling is needed.",
        "arXiv:1905.12322",
    ),
    (
        "2020",
        "Ampere A100: TF32, and bfloat16 as fast as float16. PyTorch 1.6 has torch.cuda.amp, "
        "TensorFlow 2.4 stable mixed precision in Keras.",
        "NVIDIA, A100 whitepaper; release notes of PyTorch 1.6 and TensorFlow 2.4",
    ),
    (
        "2022",
        "Hopper H100 computes float8. Its two formats are proposed: e4m3 forwards, e5m2 backwards.",
        "arXiv:2209.05433",
    ),
    (
        "2023",
        "Keras 3 takes dtype policies to TensorFlow, JAX and PyTorch. The Open Compute Project "
        "publishes its 8-bit floating point and microscaling (MX) specifications.",
        "keras.io; opencompute.org, OFP8 and MX v1.0",
    ),
    (
        "2024",
        "DeepSeek-V3 is trained in float8 with scales for small blocks, and sums in float32.",
        "arXiv:2412.19437",
    ),
)
