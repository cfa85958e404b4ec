"""What the dashboard remembers: a small JSON file that may be edited by hand.

``$KERAS_MP_DASHBOARD``, else ``$XDG_CONFIG_HOME/keras-mp/dashboard.json``, else
``~/.config/keras-mp/dashboard.json``. Each field below is a key of it; keys that are not known are
kept, values that make no sense are passed over with a sentence.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

MAX_REMEMBERED = 500


@dataclass
class Settings:
    """The fields of the file."""

    theme: str = "keras-mp-dark"
    """Name of a theme: keras-mp-dark, keras-mp-light, keras-mp-safe, or one of Textual's."""

    charset: str | None = None
    """What charts are made of: "braille", "blocks", "ascii"; null suits the terminal."""

    fps: float = 4.0
    """Looks at the journals, and frames, a second (above 0, at most 60); --fps wins over it."""

    sort: str | None = None
    """Column that the jobs are sorted by; null puts the ones that need somebody first."""

    reverse: bool = False
    """Turn the order of the column round."""

    hide_ended: bool = False
    """Leave out jobs that are over."""

    grouped: bool = False
    """Keep the jobs of a folder or host together."""

    details: bool = True
    """Show the charts and events of the selected job."""

    pinned: list[str] = field(default_factory=list)
    """Folders of the jobs that stand above all others."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """Folder of a job: the step of the NaN that has been seen."""

    def save(self, path: Path, others: dict[str, Any]) -> str | None:
        """Write the file (atomically). Returns what is wrong, in a sentence, or None."""
        content = others | asdict(self)
        content["pinned"] = self.pinned[-MAX_REMEMBERED:]
        content["acknowledged"] = dict(list(self.acknowledged.items())[-MAX_REMEMBERED:])
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(content, indent=1) + "\n")
            os.replace(scratch, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            return f"The settings cannot be written to {path} ({error.strerror})."
        return None


def default_path() -> Path:
    chosen = os.environ.get("KERAS_MP_DASHBOARD")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "keras-mp" / "dashboard.json"


def load(path: Path) -> tuple[Settings, dict[str, Any], str | None]:
    """The settings, the keys of the file that are not known here, and what is wrong with it."""
    settings = Settings()
    try:
        raw = json.loads(path.read_text())
        if not isinstance(raw, dict):
            raise ValueError("expected an object")
    except FileNotFoundError:
        return settings, {}, None
    except (OSError, ValueError, RecursionError) as error:
        return settings, {}, f"The settings in {path} cannot be read ({error}); defaults are used."
    names = {f.name for f in fields(Settings)}
    wrong = []
    for name in names & raw.keys():
        if _fits(raw[name], getattr(settings, name), name):
            setattr(settings, name, raw[name])
        else:
            wrong.append(f"{name}={raw[name]!r}")
    problem = f"The settings in {path} have values of the wrong type: {', '.join(sorted(wrong))}."
    others = {name: value for name, value in raw.items() if name not in names}
    return settings, others, problem if wrong else None


def _fits(value: Any, default: Any, name: str) -> bool:
    if name == "fps":
        return type(value) in (int, float) and 0 < value <= 60
    if name in ("sort", "charset"):
        return value is None or isinstance(value, str)
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    if isinstance(default, dict):
        return isinstance(value, dict) and all(type(v) is int for v in value.values())
    return type(value) is type(default)
