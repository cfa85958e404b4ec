"""What the README says: its script runs, its commands exist."""

import json
import re
from pathlib import Path

import pytest

from keras_mp.cli import find_commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.backend
def test_the_script_runs_and_writes_a_journal(tmp_path, monkeypatch, capsys):
    (script,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    assert len([line for line in script.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(script, "README.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[-1] == f"{2.0**15} 0"
    journal = (tmp_path / "runs/digits/events-0.jsonl").read_text()
    records = [json.loads(line) for line in journal.splitlines()]
    accuracy = [r["logs"]["accuracy"] for r in records if r["kind"] == "epoch"]
    assert len(accuracy) == 3
    assert accuracy[-1] > 0.9  # MNIST's digits are learnt
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "done"


def test_the_commands_exist():
    named = set(re.findall(r"keras-mp (?!COMMAND|--)([a-z]+)\b", README))
    assert {"monitor", "doctor"} <= named <= set(find_commands())


def test_the_make_targets_exist():
    named = set(re.findall(r"^ +make (\w+)", README, re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_pictures_exist():
    pictures = re.findall(r"!\[.*?\]\((.+?)\)", README)
    assert pictures
    assert [picture for picture in pictures if not (ROOT / picture).exists()] == []
