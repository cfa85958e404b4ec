"""What the dashboard costs while it watches: CPU, lag, first paint, memory, bytes to the terminal.

    python benchmarks/dashboard.py [--jobs 200 20 1] [--rate 20] [--seconds 20] [--json FILE]
                                   [--leet PYTHON]

A second process writes the journals (``--rate`` records a second and job, in steps of a tenth of a
second); the dashboard runs in a pseudo-terminal of 160 x 45 with three charts, and a key is pressed
now and then. CPU is the dashboard's own processor time over wall time, so that a busy machine does
not change it; lag is how late its event loop wakes, which a busy machine does change.

``--leet`` names a Python that has wandb: the first paint of W&B's LEET is then measured by turns
with ours, each on three runs of 5,000 steps, from the command to the frame with runs and charts.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

COLUMNS, ROWS = 160, 45
WARM_UP = 3.0
HISTORY = 1000  # steps that each job has done when the dashboard starts


def write_journals(runs: str, jobs: int, rate: float) -> None:
    """Child: ``jobs`` journals, each with a history, then ``rate`` records a second for ever."""
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.process import HOST, own_start
    from keras_mp.telemetry.records import Meta, Overflow, Step

    scaler = {"dynamic": True, "growth_interval": 2000, "min_scale": 2.0**-14, "max_scale": 2.0**24}
    writers = []
    for number in range(jobs):
        writer = JournalWriter(Path(runs) / f"job-{number:03}")
        writer.start(
            Meta(
                run_id=f"job-{number:03}",
                name=f"job-{number:03}",
                started=time.time(),
                host=HOST,
                pid=os.getpid(),
                process_started=own_start(),
                policy="mixed_float16" if number % 3 else "float32",
                scaler=scaler if number % 3 else None,
                planned_steps=1_000_000,
            )
        )
        writers.append(writer)

    def write(number: int, step: int, now: float) -> None:
        scaled = number % 3 != 0
        if scaled and step % 1000 == 999:
            where = {"variables": ["dense/kernel"], "layer": "dense", "origin": "backward"}
            writers[number].write(
                Overflow(step=step, time=now, scale_before=2.0**16, scale_after=2.0**15, **where)
            )
        writers[number].write(
            Step(
                step=step,
                time=now,
                loss=2.0 / (1 + step / 500) + 0.01 * (step * 7919 % 100) / 100,
                samples=256,
                seconds=1 / rate,
                step_time_p50=1 / rate,
                step_time_p95=1.2 / rate,
                scale=2.0 ** (15 + step // 1000 % 2) if scaled else None,
                skipped=step // 1000 if scaled else None,
                applied=step - step // 1000 if scaled else None,
                good_steps=step % 2000 if scaled else None,
            )
        )

    start = time.time()
    for step in range(1, HISTORY + 1):
        for number in range(jobs):
            write(number, step, start - (HISTORY - step) / rate)
    print("ready", flush=True)
    done = HISTORY
    while True:
        time.sleep(0.1)
        due = HISTORY + int((time.time() - start) * rate)
        for step in range(done + 1, due + 1):
            for number in range(jobs):
                write(number, step, time.time())
        done = max(done, due)


def watch(runs: str, report: str) -> None:
    """Child: the dashboard, with a probe in its event loop."""
    import asyncio

    from tui.app import MonitorApp

    lags: list[float] = []

    class Probed(MonitorApp):
        async def probe(self) -> None:
            loop = asyncio.get_running_loop()
            while self.snapshot is None or self.snapshot.behind or not self.snapshot.jobs:
                await asyncio.sleep(0.1)
            Path(f"{report}.ready").touch()  # the history has been read
            while True:
                due = loop.time() + 0.02
                await asyncio.sleep(0.02)
                lags.append(loop.time() - due)

        def on_mount(self) -> None:
            self.run_worker(self.probe())

    Probed([runs]).run()
    Path(report).write_text(json.dumps(lags))


class Screen:
    """A program in a pseudo-terminal."""

    def __init__(self, *command: str):
        self.sent = 0
        self.seen = b""  # the first megabyte of it
        self.started = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            settings = f"{tempfile.gettempdir()}/no-settings-{os.getpid()}.json"
            os.environ["KERAS_MP_DASHBOARD"] = settings  # as it opens for the first time
            os.execv(command[0], command)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds: float, until: bytes | None = None) -> float:
        """Read for ``seconds``, or until ``until`` was written; returns seconds since the start."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (until is None or until not in self.seen):
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    data = os.read(self.fd, 1 << 16)
                except OSError:  # the dashboard has ended
                    break
                self.sent += len(data)
                if len(self.seen) < 1 << 20:
                    self.seen += data
        return time.monotonic() - self.started

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory(self) -> float:
        """Largest resident set so far, MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6

    def quit(self) -> None:
        self.press(b"q")
        end = time.monotonic() + 15
        while time.monotonic() < end:
            self.read(0.1)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def measure(jobs: int, rate: float, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        runs, report = f"{folder}/runs", f"{folder}/lags.json"
        command = [sys.executable, __file__, "--write", runs, str(jobs), str(rate)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            if writer.stdout is None or not writer.stdout.readline():
                raise RuntimeError("the writer has not started")
            screen = Screen(sys.executable, __file__, "--watch", runs, report)
            painted = screen.read(20.0, until=b"quit")
            rows = screen.read(20.0, until=b"job-0")
            while not Path(f"{report}.ready").exists():
                screen.read(0.2)
            read = time.monotonic() - screen.started
            screen.read(WARM_UP)
            cpu, sent, begun = screen.cpu(), screen.sent, time.monotonic()
            while time.monotonic() - begun < seconds:
                screen.read(1.0)
                screen.press(b"j")
            wall = time.monotonic() - begun
            used = (screen.cpu() - cpu) / wall
            bytes_live = (screen.sent - sent) / wall
            writer.send_signal(signal.SIGSTOP)
            screen.read(3.0)
            sent, begun = screen.sent, time.monotonic()
            screen.read(5.0)
            bytes_rest = (screen.sent - sent) / (time.monotonic() - begun)
            peak = screen.peak_memory()
            screen.quit()
        finally:
            writer.kill()
            writer.wait()
            if writer.stdout is not None:
                writer.stdout.close()
        lags = sorted(1000 * lag for lag in json.loads(Path(report).read_text())[100:])
    return {
        "jobs": jobs,
        "cpu_percent": round(100 * used, 1),
        "lag_p50_ms": round(statistics.median(lags), 1),
        "lag_p95_ms": round(lags[int(0.95 * len(lags))], 1),
        "first_paint_s": round(painted, 2),
        "first_rows_s": round(rows, 2),
        "history_s": round(read, 1),
        "peak_mb": round(peak, 0),
        "kib_per_s": round(bytes_live / 1024, 1),
        "kib_per_s_at_rest": round(bytes_rest / 1024, 1),
    }


ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(\x1b\\|\x07)|[@-Z\\-_])", re.S)
LEET_RUNS = """
import os, random, sys, wandb
for number in range(3):
    run = wandb.init(project="p", name=f"run{number}", mode="offline", dir=sys.argv[1])
    for step in range(5000):
        values = {"loss": 2 / (1 + step / 500) + random.random() / 100, "scale": 65536.0}
        run.log(values | {"samples_per_second": 1000 + random.random() * 10}, step=step)
    run.finish()
"""


def paint_time(words: Sequence[str], *command: str) -> float:
    """Seconds from the command until its screen has shown all of ``words``."""
    screen = Screen(*command)
    seen = b""
    try:
        while time.monotonic() - screen.started < 30:
            if select.select([screen.fd], [], [], 0.02)[0]:
                data = os.read(screen.fd, 1 << 16)
                seen += data
                # LEET asks the terminal what it is, and waits for the answer.
                if b"\x1b[c" in data or b"\x1b[6n" in data or b"\x1b]11;?" in data:
                    screen.press(b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[1;1R\x1b[?62c")
                text = ESCAPES.sub(b"", seen).decode(errors="replace")
                if all(word in text for word in words):
                    return time.monotonic() - screen.started
        raise TimeoutError(f"{words} did not appear within 30 s")
    finally:
        os.kill(screen.pid, signal.SIGKILL)
        os.waitpid(screen.pid, 0)
        os.close(screen.fd)


def finished_runs(runs: str, jobs: int, steps: int) -> None:
    """Journals of jobs that are over."""
    code = f"import dashboard; dashboard.write_finished({runs!r}, {jobs}, {steps})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def write_finished(runs: str, jobs: int, steps: int) -> None:
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.process import HOST
    from keras_mp.telemetry.records import End, Meta, Step

    now = time.time() - steps
    for number in range(jobs):
        writer = JournalWriter(Path(runs) / f"run{number}")
        meta = Meta(run_id=f"run{number}", name=f"run{number}", started=now, host=HOST, pid=1)
        writer.start(meta)
        for step in range(1, steps + 1):
            loss = 2 / (1 + step / 500) + (step * 7919 % 100) / 10000
            pace = {"samples": 1000 + step % 10, "seconds": 1.0}
            writer.write(Step(step=step, time=now + step, loss=loss, scale=65536.0, **pace))
        writer.write(End(step=steps, time=now + steps, status="done"))


def first_paints(leet: str | None, times: int = 7) -> dict[str, float]:
    """Median seconds to the first frame with data; by turns, so that load meets both alike."""
    ours = [sys.executable, "-c", "import sys; from keras_mp.cli import main; main(sys.argv[1:])"]
    told: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        finished_runs(f"{folder}/few", 3, 5000)
        finished_runs(f"{folder}/many", 200, 1000)
        if leet:
            command = [leet, "-c", LEET_RUNS, folder]
            quiet = os.environ | {"WANDB_SILENT": "true"}
            subprocess.run(command, check=True, env=quiet, stdout=subprocess.DEVNULL)
        for _ in range(times):
            for name, runs in (("3 runs", "few"), ("200 runs", "many")):
                words = ("samples/s", "run1", "loss", "└", "quit")
                seconds = paint_time(words, *ours, "monitor", f"{folder}/{runs}")
                told.setdefault(name, []).append(seconds)
            if leet:
                words = ("offline-run-", "loss", "└")
                executable = str(Path(leet).with_name("wandb"))
                seconds = paint_time(words, executable, "leet", f"{folder}/wandb")
                told.setdefault("LEET, 3 runs", []).append(seconds)
    return {name: round(statistics.median(seconds), 2) for name, seconds in told.items()}


def chart_time() -> float:
    """Milliseconds to draw a chart of a million points in 120 x 30 cells, the best of ten."""
    import numpy as np

    from tui.drawing.chart import Chart, Series, draw
    from tui.drawing.raster import BRAILLE

    rng = np.random.default_rng(0)
    series = Series(np.arange(1e6), rng.standard_normal(10**6))
    chart = Chart("loss", [series], lambda value: f"{value:g}")
    best = float("inf")
    for _ in range(10):
        begun = time.perf_counter()
        draw(chart, 120, 30, BRAILLE)
        best = min(best, time.perf_counter() - begun)
    return round(1000 * best, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[200, 20, 1])
    parser.add_argument("--rate", type=float, default=20.0, help="records a second and job")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--leet", metavar="PYTHON", help="a Python that has wandb")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    results = []
    for jobs in args.jobs:
        results.append(measure(jobs, args.rate, args.seconds))
        if len(results) == 1:
            print("  ".join(results[0]))
        widths = map(len, results[0])
        print(
            "  ".join(f"{v:>{w}}" for v, w in zip(results[-1].values(), widths, strict=True)),
            flush=True,
        )
    chart = chart_time()
    paints = first_paints(args.leet)
    print("first frame with data:", ", ".join(f"{k} {v} s" for k, v in paints.items()))
    load = os.getloadavg()[0]
    print(f"a chart of 10^6 points: {chart} ms; load of the machine now: {load:.1f}")
    if args.json:
        content = {"results": results, "chart_ms": chart, "load": load, "rate": args.rate}
        content["first_paint_s"] = paints
        Path(args.json).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_journals(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    elif sys.argv[1:2] == ["--watch"]:
        watch(sys.argv[2], sys.argv[3])
    else:
        main()
