"""What is said where jobs should be and are not. Pure."""

from collections.abc import Sequence

from tui.snapshot import Snapshot


def sentences(snapshot: Snapshot, shown: int, places: Sequence[str], pattern: str) -> list[str]:
    """Why the table is empty, or what of it is missing; nothing where all is there.

    Args:
        shown: Jobs in the table. places: What is watched. pattern: The filter.
    """
    said = list(snapshot.errors)
    if not snapshot.jobs and not said:
        said = [f"No runs in {', '.join(places)} yet.", ""]
        said.append("A job that trains with keras_mp.Monitor(...) appears here as it starts.")
    elif snapshot.jobs and not shown:
        number = len(snapshot.jobs)
        none = f"None of {number} jobs" if number != 1 else "The only job does not show: none"
        why = f"matches the filter {pattern!r}" if pattern else "is still running"
        said = [f"{none} {why}.", "Esc in the filter or h shows them again."]
    return said
