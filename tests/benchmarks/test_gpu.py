"""``benchmarks/gpu.py``: the same models in Keras and torch, the counts, the table; a dry run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


class TestTraces:
    """Chrome traces as jax writes them on a GPU: a row for each stream, and rows that repeat it."""

    def trace(self, *events):
        names = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0 H100"}},
            {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
            {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}},
            {"ph": "M", "pid": 1, "tid": 9, "name": "thread_name", "args": {"name": "XLA Ops"}},
            {"ph": "M", "pid": 2, "tid": 7, "name": "thread_name", "args": {"name": "Stream #1"}},
        ]
        return {"traceEvents": [*names, *events]}

    def event(self, name, pid=1, tid=7, ph="X"):
        return {"name": name, "pid": pid, "tid": tid, "ph": ph, "ts": 0, "dur": 1}

    @pytest.mark.backend
    def test_kernels_and_copies_of_the_streams_count(self, modules):
        from gpu_profile import from_traces

        trace = self.trace(
            *[self.event("fusion_1")] * 6,
            self.event("MemcpyD2H"),
            self.event("MemcpyH2D"),
            self.event("Memset"),
            self.event("fusion_1", tid=9),
            self.event("fusion_1", pid=2),
            self.event("fusion_1", ph="i"),
        )
        found = from_traces([trace], steps=2)
        assert found == {"operators": None, "launches": 3.0, "reads": 0.5}

    @pytest.mark.backend
    def test_without_a_gpu_nothing_is_known(self, modules):
        from gpu_profile import from_traces

        on_cpu = self.trace(self.event("dot", pid=2))
        assert set(from_traces([on_cpu], 1).values()) == {None}


@pytest.mark.backend
class TestModels:
    @pytest.mark.parametrize("model", ["resnet50", "transformer", "demo"])
    def test_both_versions_have_the_same_parameters_and_shapes(self, modules, model, backend):
        if backend != "torch":
            pytest.skip("compared on torch")
        import gpu_models
        import numpy as np
        import torch

        size = gpu_models.SIZES["dry"]
        ours, _ = gpu_models.keras_model(model, size)
        native, loss = gpu_models.torch_model(model, size)
        x, y = gpu_models.data(model, size)
        count = sum(p.numel() for p in native.parameters())
        assert count == sum(int(np.prod(v.shape)) for v in ours.trainable_variables)
        first = torch.from_numpy(x.transpose(0, 3, 1, 2).copy() if x.ndim == 4 else x)
        out = native(first)
        assert tuple(out.shape) == tuple(ours(x).shape)
        assert torch.isfinite(loss(out, torch.from_numpy(y.copy())))

    def test_it_is_resnet_50(self, modules, backend):
        if backend != "torch":
            pytest.skip("counted on torch")
        import gpu_models
        import torch

        with torch.device("meta"):
            net, _ = gpu_models.torch_model("resnet50", gpu_models.SIZES["full"])
        assert sum(p.numel() for p in net.parameters()) == 25_557_032  # torchvision's resnet50


class TestCounts:
    """torch's profiler, which sees the device only where the driver lets it."""

    @pytest.mark.backend
    @pytest.mark.parametrize(
        ("counts", "gpu", "expected"),
        [
            ({"aten::add": 6, "cudaLaunchKernel": 8, "Memcpy DtoH (x)": 2}, True, (3, 4, 1)),
            ({"aten::add": 6, "aten::_local_scalar_dense": 2}, True, (4, None, 1)),
            ({"aten::add": 6, "aten::_local_scalar_dense": 2}, False, (4, None, None)),
        ],
    )
    def test_what_it_did_not_see_is_unknown(self, modules, counts, gpu, expected):
        from gpu_profile import from_counts

        found = from_counts(counts, 2, gpu)
        assert (found["operators"], found["launches"], found["reads"]) == expected


@pytest.mark.slow
@pytest.mark.backend
def test_a_dry_run_has_every_piece(tmp_path, backend):
    path = tmp_path / "gpu.json"
    # From the sources, from another folder, as on a machine where nothing of ours is installed.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry-run", "--json", str(path)]
    # tensorflow and jax compile each model in each precision: one model is enough to see it runs.
    models = ["resnet50", "transformer", "demo"] if backend == "torch" else ["demo"]
    command += ["--minutes", "30", "--models", *models]
    ended = subprocess.run(
        [*command, "--backends", backend], env=environment, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(path.read_text())
    rows = found["rows"]
    assert found["dry_run"] and found["done"]
    assert not [row for row in rows if row["piece"] in ("late", "crash")]
    failed = [row for row in rows if "error" in row]
    if backend == "jax":
        # XLA has no float16 products with float32 sums on a CPU, which jax' attention asks for.
        assert {(r["model"], r["precision"]) for r in failed} <= {("transformer", "float16")}
        failed = []
    assert not failed
    setups = {(r["model"], r["precision"], r["whose"]) for r in rows if r["piece"] == "speed"}
    assert len(setups) == 6 * len(models)
    natives = [row for row in rows if row["piece"] == "native"]
    assert len(natives) == (12 if backend == "torch" else 0)
    assert {row["whose"] for row in rows if row["piece"] == "profile"} >= {"Keras", "ours"}
    assert len([row for row in rows if row["piece"] == "telemetry"]) == 1
    verdicts = {row["check"]: row["verdict"] for row in rows if row["piece"] == "checks"}
    assert verdicts["a skipped step changes nothing"] == "fine"
    assert verdicts["the fused kernel is right"] == "fine"
    assert path.with_suffix(".md").read_text() in ended.stdout
