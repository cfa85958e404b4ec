"""How ``benchmarks/gpu.py`` gets through its time: what fails costs its own row, and is named."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


STEP = {"piece": "speed", "model": "demo", "precision": "float32", "whose": "Keras"}
SPEED = STEP | {"batch": 8, "samples_per_s": 100.0, "peak_bytes": 2**31}


def fake_worker(monkeypatch, tmp_path, body):
    """Let another program take the worker's place; returns the module that starts it.

    The program has ``say(row)``, ``wanted`` (the pieces) and ``skip``.
    """
    import gpu_run

    path = tmp_path / "worker.py"
    path.write_text(
        "import argparse, json, os, sys, time\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--only', action='append')\n"
        "parser.add_argument('--skip', type=int, default=0)\n"
        "args, _ = parser.parse_known_args()\n"
        "wanted, skip = args.only, args.skip\n"
        "def say(**row): print(json.dumps(row), flush=True)\n" + body
    )
    monkeypatch.setattr(gpu_run, "WORKER", path)
    return gpu_run


class TestProcesses:
    """A process that dies, breaks its device, or does not end costs its own rows alone."""

    THREE_ROWS = (
        "for piece in wanted:\n"
        "    for number in range(3):\n"
        "        if number < skip: continue\n"
        "        if (piece, number) == ('speed', 1): {}\n"
        "        say(piece=piece, number=number)\n"
        "    skip = 0\n"
        "    say(piece='ended', of=piece)\n"
    )

    @pytest.mark.parametrize(
        ("fault", "told"),
        [
            ("os._exit(7)", []),
            # The device breaks in the row, and the process sees it after it has said the row.
            ("say(piece=piece, number=1, error='x'); sys.exit(3)", [("speed", 1)]),
        ],
    )
    def test_another_one_goes_on_behind_the_row(self, modules, monkeypatch, tmp_path, fault, told):
        run = fake_worker(monkeypatch, tmp_path, self.THREE_ROWS.format(fault))
        rows = []
        run.pieces("torch", ["speed", "checks"], 600, [], rows.append)
        crash = {"piece": "crash", "of": "speed", "row": 2, "status": 3 if told else 7}
        assert [r for r in rows if r["piece"] == "crash"] == [crash]
        found = [(r["piece"], r["number"]) for r in rows if "number" in r]
        checks = [("checks", number) for number in range(3)]
        assert found == [("speed", 0), *told, ("speed", 2), *checks]

    def test_one_that_cannot_start_is_not_started_for_ever(self, modules, monkeypatch, tmp_path):
        run = fake_worker(monkeypatch, tmp_path, "sys.exit(5)")
        rows = []
        run.pieces("torch", ["speed", "checks"], 600, [], rows.append)
        assert [row["piece"] for row in rows] == ["crash", "crash", "late", "late"]
        assert {row["of"] for row in rows if row["piece"] == "late"} == {"speed", "checks"}

    def test_one_that_hangs_is_ended_when_its_time_is_up(self, modules, monkeypatch, tmp_path):
        run = fake_worker(monkeypatch, tmp_path, "time.sleep(600)")
        rows = []
        run.pieces("torch", ["speed"], 0.5, [], rows.append)
        assert rows == [{"piece": "late", "of": "speed", "left": ["the rest"]}]

    def test_a_backend_that_cannot_be_imported_says_so(self, modules, monkeypatch, tmp_path):
        body = (
            "print('a word of a library')\n"
            "if os.environ['KERAS_BACKEND'] == 'jax': raise ImportError('no such file')\n"
            "say(piece='about', device='a card')\n"
        )
        run = fake_worker(monkeypatch, tmp_path, body)
        found = run.about(["torch", "jax"])
        assert found["torch"]["device"] == "a card"
        assert found["jax"] == {"why": "ended with status 1"}

    def test_the_worker_itself_says_why(self, modules, tmp_path, monkeypatch):
        import gpu_run

        (tmp_path / "keras.py").write_text("raise OSError('libcudart.so.12: cannot open')")
        monkeypatch.setattr(gpu_run, "ROOT", tmp_path)  # first on the path of the process
        why = "OSError: libcudart.so.12: cannot open"
        assert gpu_run.about(["torch"])["torch"]["why"] == why


class TestPieces:
    """What runs in the process: made-up pieces, so that each can fail."""

    @pytest.fixture
    def work(self, modules, monkeypatch):
        import gpu_work

        def speed(size, steps, models):
            def fails():
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB\nmore")

            for model in ("a", "b", "c"):
                yield {"model": model}, fails if model == "b" else lambda: {"batch": 8}

        monkeypatch.setitem(gpu_work.PIECES, "speed", speed)
        monkeypatch.setitem(gpu_work.PIECES, "checks", speed)
        return gpu_work

    def said(self, capsys):
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def test_a_row_that_fails_says_why_and_the_next_one_runs(self, work, capsys):
        work.run(["speed"], None, 2, [])
        rows = self.said(capsys)
        assert rows[:3] == [
            {"piece": "speed", "model": "a", "batch": 8},
            {
                "piece": "speed",
                "model": "b",
                "error": "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB",
            },
            {"piece": "speed", "model": "c", "batch": 8},
        ]
        assert rows[3:] == [{"piece": "ended", "of": "speed"}]

    def test_a_device_that_is_broken_ends_the_process_after_the_row(self, work, capsys):
        answers = iter([True, False])
        with pytest.raises(SystemExit) as ended:
            work.run(["speed"], None, 2, [], tidied=lambda: next(answers))
        assert ended.value.code == work.BROKEN
        assert [row.get("model") for row in self.said(capsys)] == ["a", "b"]

    def test_rows_that_are_done_are_not_done_again(self, work, capsys):
        work.run(["speed", "checks"], None, 2, [], skip=2)
        assert [row.get("model") for row in self.said(capsys)] == ["c", None, "a", "b", "c", None]

    def test_without_time_each_piece_has_its_first_row_and_names_the_others(self, work, capsys):
        work.run(["speed", "checks"], None, 2, [], seconds=-1e9)
        rows = self.said(capsys)
        assert [row["piece"] for row in rows] == [
            "speed",
            "late",
            "ended",
            "checks",
            "late",
            "ended",
        ]
        assert rows[1]["left"] == ["b", "c"]


class TestProgram:
    """The command itself, with made-up processes."""

    def about(self, **other):
        card = {"version": "2", "keras": "3", "device": "H200 (compute capability 9.0)"}
        return card | {"on_cpu": False, "memory_bytes": 150e9} | other

    def program(self, monkeypatch, about, pieces=lambda *a: None):
        import gpu

        monkeypatch.setattr(gpu, "about", lambda backends: {b: about[b] for b in backends})
        monkeypatch.setattr(gpu, "pieces", pieces)
        monkeypatch.setattr(gpu.signal, "signal", lambda *a: None)
        return gpu

    @pytest.mark.parametrize("how", [KeyboardInterrupt(), SystemExit(143)])
    def test_ended_before_its_end_it_leaves_the_rows_and_the_table(
        self, modules, monkeypatch, tmp_path, capsys, how
    ):
        def pieces(backend, wanted, seconds, options, add):
            add(SPEED)
            kept = json.loads(path.read_text())  # at once, whatever comes next
            assert kept["rows"] == [{"backend": "torch", **SPEED}]
            assert "| 8 | 100 |" in path.with_suffix(".md").read_text()
            raise how

        path = tmp_path / "gpu.json"
        gpu = self.program(monkeypatch, {"torch": self.about()}, pieces)
        arguments = ["--backends", "torch", "--json", str(path)]
        if isinstance(how, SystemExit):
            with pytest.raises(SystemExit):
                gpu.main(arguments)
        else:
            gpu.main(arguments)
        assert json.loads(path.read_text())["done"] is False
        assert "The program was ended before its end." in capsys.readouterr().out

    def test_time_is_shared_among_those_that_see_a_gpu(self, modules, monkeypatch, tmp_path):
        seen = []

        def pieces(backend, wanted, seconds, options, add):
            seen.append((backend, "native" in wanted, round(seconds / 60), "--large" in options))

        about = {
            "torch": self.about(),
            "jax": self.about(memory_bytes=0),
            "tensorflow": self.about(on_cpu=True, memory_bytes=400e9),
        }
        gpu = self.program(monkeypatch, about, pieces)
        path = tmp_path / "gpu.json"
        backends = ["--backends", "torch", "jax", "tensorflow"]
        assert gpu.main([*backends, "--minutes", "8", "--json", str(path)]) == 0
        assert seen == [("torch", True, 4, True), ("jax", False, 8, True)]
        text = path.with_suffix(".md").read_text()
        assert "- **tensorflow: nothing ran: it sees no GPU" in text
        assert "- jax 2, keras 3, on H200 (compute capability 9.0)." in text

    def test_without_a_gpu_nothing_is_measured(self, modules, monkeypatch, tmp_path):
        def never(*arguments):
            raise AssertionError("it began to measure")

        gpu = self.program(monkeypatch, {"torch": self.about(on_cpu=True)}, never)
        path = tmp_path / "gpu.json"
        assert gpu.main(["--backends", "torch", "--json", str(path)]) == 1
        assert json.loads(path.read_text())["rows"] == []


class TestTable:
    def test_every_line_says_what_ran_where_and_what_did_not(self, modules):
        from gpu_table import table

        told = {"version": "2", "keras": "3", "device": "a card"}
        rows = [
            SPEED,
            STEP | {"precision": "float16", "error": "OutOfMemoryError: no"},
            SPEED | {"precision": "bfloat16", "samples_per_s": 250.0, "peak_bytes": None},
            {"piece": "checks", "check": "sums", "verdict": "fault", "seen": "2"},
            {"piece": "telemetry", "error": "ImportError: no psutil"},
            {"piece": "late", "of": "profile", "left": ["transformer, float16, ours", "b"]},
            {"piece": "crash", "of": "native", "row": 3, "status": -11},
        ]
        text = table(
            {
                "device": "a card",
                "dry_run": False,
                "done": True,
                "seconds": 9,
                "about": {"torch": told, "jax": {"why": "ended with status 1"}},
                "rows": [{"backend": "torch"} | row for row in rows],
            }
        )
        assert "| demo | torch, a card | bfloat16 | Keras | 8 | 250 | 2.50 | – |" in text
        assert "| demo | torch, a card | float32 | Keras | 8 | 100 | 1.00 | 2.00 GiB |" in text
        assert "OutOfMemoryError: no" in text
        assert "| sums | torch, a card | **fault** | 2 |" in text
        assert "Monitor, torch, a card: ImportError: no psutil" in text
        assert "No time was left, torch, a card, profile: transformer, float16, ours; b." in text
        assert "torch, a card ended with status -11 in native, row 3" in text
        assert "jax: nothing ran: ended with status 1" in text
        assert "tensorflow: nothing ran: not installed" in text
        assert "dry run" not in text and "before its end" not in text
