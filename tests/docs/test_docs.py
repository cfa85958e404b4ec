"""The documentation: its code runs, its commands exist, it says all verdicts, the site builds."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FunctionType
from typing import get_args

import pytest

import keras_mp
from keras_mp.cli import build_parser, main
from keras_mp.telemetry.health import State
from keras_mp.telemetry.scale_health import ScaleState

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BACKEND = os.environ.get("KERAS_BACKEND", "torch")
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
# <!-- only: torch --> or <!-- torchrun: 2 --> or <!-- needs: a file --> may stand over a block.
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n"
    r"(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


def all_blocks(page):
    """(language, note, code) of each block of the page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        (match["language"], match["note"] or "", textwrap.dedent(match["code"]))
        for match in BLOCK.finditer(text)
    ]


def blocks(page, language):
    return [(note, code) for found, note, code in all_blocks(page) if found == language]


def commands(code):
    """The words of each keras-mp command in a block for the shell."""
    for line in code.splitlines():
        if line.startswith("keras-mp "):
            yield shlex.split(line.split(" > ")[0].split(" || ")[0], comments=True)[1:]


def runs_here(words):
    """Whether a command ends by itself, within seconds, on this machine."""
    if words[0] == "monitor":
        return {"--once", "--json"} & set(words) and not any(":" in word for word in words)
    return words[0] not in ("lab", "relay", "bench", "demo")


WITH_PYTHON = [
    page for page in PAGES if any(not n.startswith("torchrun") for n, _ in blocks(page, "python"))
]
COMMANDS = [
    (page, note, words)
    for page in PAGES
    for note, code in blocks(page, "bash")
    for words in commands(code)
]


# jax compiles for long what runs for a moment.
SLOW = {("jax", "guide.md"), ("jax", "howto/numerics.md"), ("jax", "howto/resume.md")}


@pytest.mark.backend
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if (BACKEND, page) in SLOW else [])
        for page in WITH_PYTHON
    ],
)
def test_the_pages_code_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, as a reader would type them; commands too."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for language, note, code in all_blocks(page):
        kind, _, what = note.partition(": ")
        if kind in ("torchrun", "needs") or (kind == "only" and what != BACKEND):
            continue
        if language == "python":
            exec(compile(code, f"docs/{page}", "exec"), names)
        elif language == "bash":
            for words in filter(runs_here, commands(code)):
                # Well, or a warning; a job that is unhealthy on purpose is said to be so.
                allowed = (0, 1, 2) if words[0] == "monitor" else (0, 1)
                assert main(words) in allowed, words


def test_every_block_runs_on_some_backend():
    notes = {note for page in PAGES for note, _ in blocks(page, "python")}
    assert notes <= {"", "only: torch", "only: tensorflow", "only: jax", "torchrun: 2"}
    assert len(WITH_PYTHON) > 5


@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.skipif(BACKEND != "torch", reason="torch.distributed")
def test_the_code_for_several_processes_skips_the_bad_step_in_both(tmp_path):
    (code,) = [c for n, c in blocks("howto/ddp.md", "python") if n == "torchrun: 2"]
    (tmp_path / "train.py").write_text(code)
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc_per_node=2", "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Both write to one pipe: a line's end may come after the other's text.
    said = sorted(re.findall(r"process \d: skipped \d+, scale \d+\.0", done.stdout))
    assert said == [f"process {rank}: skipped 1, scale 16384.0" for rank in (0, 1)]
    journals = sorted(path.name for path in tmp_path.glob("runs/ddp/events-*.jsonl"))
    assert journals == ["events-0.jsonl", "events-1.jsonl"]


@pytest.mark.parametrize("words", [w for _, _, w in COMMANDS], ids=" ".join)
def test_the_command_exists_with_these_arguments(words):
    assert build_parser().parse_args(words).command == words[0]


@pytest.mark.parametrize(
    "words", [w for _, note, w in COMMANDS if w[0] == "estimate" and not note], ids=" ".join
)
def test_the_estimates_run(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out


def test_every_verdict_is_on_its_page():
    page = (DOCS / "howto" / "verdict.md").read_text()
    for word in (*get_args(ScaleState), *get_args(State)):
        assert f"`{word}`" in page, word


def test_the_pages_of_the_lab_are_those_that_it_has():
    from tui.lab.screen import PAGES as LAB

    page = (DOCS / "howto" / "lab.md").read_text()
    assert re.findall(r"^\| (\w+) \|", page, re.MULTILINE)[1:] == [p.TITLE for p in LAB]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. --strict: a broken link, or a page that the menu lacks, is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=900,  # it loads Keras, for names that no source shows
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page_and_every_public_name(site):
    for page in PAGES:
        assert (site / page.replace(".md", ".html")).is_file(), page
    api = (site / "api.html").read_text()
    for name in keras_mp._PUBLIC:
        assert re.search(rf'id="keras_mp\.[\w.]*\b{name}"', api), name
    for member in ("overflow_report", "loss_scale", "headroom", "bind"):
        assert f'LossScaleOptimizer.{member}"' in api, member


@pytest.mark.backend
@pytest.mark.skipif(BACKEND != "torch", reason="the names are those of Keras on any backend")
def test_the_reference_names_everything_in_the_public_modules(site):
    api = (site / "api.html").read_text()
    for module in set(keras_mp._MODULES) - {"numerics"}:  # (a package of modules, without names)
        names = getattr(keras_mp, module).__all__
        assert len(names) > 1
        for name in names:
            assert re.search(rf'id="keras_mp\.{module}[\w.]*\.{name}"|<code>{name}</code>', api), (
                name
            )


def test_the_site_carries_what_stands_elsewhere_and_fetches_nothing(site):
    assert "float8 is refused" in (site / "limits.html").read_text()
    assert "scaler.py" in (site / "benchmarks.html").read_text()
    assert "keras-mp estimate" in (site / "changes.html").read_text()
    assert 'dir="rtl"' in (site / "ar.html").read_text()
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', page.read_text()
        )
        assert fetched == [], page


def keras_optimizer():
    import keras

    return keras.optimizers.Adam()


@pytest.mark.backend
def test_the_reference_lists_what_the_optimizer_inherits_from_ours():
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    optimizer = keras_mp.LossScaleOptimizer
    mixins = [c for c in optimizer.__mro__[1:] if c.__module__.startswith("keras_mp.")]
    here = {
        name
        for mixin in mixins
        for name, value in vars(mixin).items()
        if isinstance(value, (property, FunctionType, classmethod)) and not name.startswith("_")
    }
    listed = set(hooks.inherited(optimizer.__module__, "LossScaleOptimizer"))
    assert {"bind", "loss_scale", "overflow_report", "headroom"} <= listed <= here
    # What is left out is Keras' own, handed on to the inner optimizer.
    assert here - listed <= {*dir(keras_optimizer()), "optimizers"}
    assert hooks.inherited("keras_mp.telemetry.monitor", "Monitor") == []
