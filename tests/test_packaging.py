"""The wheel, the extras, and the sentence where no backend is installed."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Makes the packages of every backend impossible to import, as if none were installed.
NO_BACKEND = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_python(code, *arguments, blocked=(), **environment):
    code = NO_BACKEND.format(blocked=blocked) + code if blocked else code
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=os.environ | environment,
    )


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_both_packages(wheel):
    """Python files and what stands beside them (the dashboard's style sheets, tables of facts)."""
    listing = subprocess.run(
        ["git", "ls-files", "keras_mp", "tui"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {line for line in listing.stdout.splitlines() if (ROOT / line).exists()}
    assert tracked - names == set()
    assert {"keras_mp/__init__.py", "tui/__init__.py"} <= names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_wheel_carries_the_demos_task_as_it_stands_in_examples(wheel):
    carried = zipfile.ZipFile(wheel).read("keras_mp/_examples/digit_heatmap.py")
    assert carried == (ROOT / "examples/digit_heatmap.py").read_bytes()


def test_the_wheel_carries_what_the_papers_benchmark_measured_for_the_lab(wheel):
    carried = zipfile.ZipFile(wheel).read("tui/lab/data/paper.json")
    assert carried == (ROOT / "docs/paper.json").read_bytes()


def test_the_extras_are_those_that_the_documentation_names():
    extras = PROJECT["optional-dependencies"]
    assert {"torch", "tensorflow", "jax", "tui", "gpu", "tensorboard", "dev"} <= set(extras)
    required = " ".join(PROJECT["dependencies"])
    for heavy in ("torch", "tensorflow", "jax", "textual"):
        assert heavy not in required  # pip install keras-mp brings no backend and no dashboard


def test_constraints_pin_what_make_installs():
    pinned = {
        canonical(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], "tensorflow-cpu"]
    asked += [
        spec for extra in ("torch", "jax", "tui", "demo", "docs", "dev") for spec in extras[extra]
    ]
    names = {canonical(re.split(r"[\[<>=!~ ]", spec)[0]) for spec in asked} - {"keras-mp"}
    assert names - pinned == set()


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_without_a_backend_the_library_says_which_extra_to_install(backend):
    done = run_python(
        "import keras_mp; print(keras_mp.__version__); keras_mp.set_policy('float32')",
        blocked=("torch", "tensorflow", "jax"),
        KERAS_BACKEND=backend,
    )
    assert done.stdout.strip() == PROJECT_VERSION  # the import itself needs none
    sentence = done.stderr.splitlines()[-1]
    assert f"'{backend}' (chosen by KERAS_BACKEND) is not installed" in sentence
    assert f"pip install 'keras-mp[{backend}]'" in sentence
    assert "set KERAS_BACKEND=" not in sentence  # there is no other to use


def test_a_backend_that_is_installed_is_offered():
    done = run_python(
        "import keras_mp; keras_mp.set_policy('float32')",
        blocked=("tensorflow",),
        KERAS_BACKEND="tensorflow",
    )
    assert "set KERAS_BACKEND=torch before Keras loads" in done.stderr.splitlines()[-1]


def test_the_source_of_the_choice_is_named(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    code = "import os; os.environ.pop('KERAS_BACKEND', None); import keras_mp; keras_mp.set_policy"
    done = run_python(code, blocked=("jax",), KERAS_HOME=str(tmp_path))
    assert f"'jax' (chosen by {tmp_path / 'keras.json'})" in done.stderr.splitlines()[-1]
    done = run_python(code, blocked=("tensorflow",), KERAS_HOME="/dev/null/none")
    assert "'tensorflow' (chosen by Keras' default)" in done.stderr.splitlines()[-1]


def test_another_module_that_is_missing_is_not_blamed_on_the_backend():
    done = run_python(
        "import keras_mp; keras_mp.set_policy", blocked=("absl",), KERAS_BACKEND="torch"
    )
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'absl'"


def test_importing_the_library_imports_no_backend():
    done = run_python(
        "import sys, keras_mp; dir(keras_mp);"
        "print([m for m in ('keras', 'torch', 'tensorflow', 'jax') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_public_name_is_an_attribute_error():
    import keras_mp

    with pytest.raises(AttributeError, match="module 'keras_mp' has no attribute 'nothing'"):
        keras_mp.nothing  # noqa: B018


@pytest.mark.slow
def test_pip_install_alone_gives_the_library_and_the_sentence(tmp_path):
    """In a fresh environment: no backend, no dashboard; what needs one says what to install."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", "."], cwd=ROOT, check=True, timeout=600)
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}

    def run(*command):
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
        )

    done = run(python, "-c", "import keras_mp; keras_mp.set_policy('float32')")
    assert "pip install 'keras-mp[tensorflow]'" in done.stderr.splitlines()[-1]
    assert run(tmp_path / "venv/bin/keras-mp", "--help").returncode == 0


PROJECT_VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "keras_mp/_version.py").read_text()
).group(1)
