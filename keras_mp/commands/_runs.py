"""What the commands share that read one recorded run."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_mp.telemetry.jobs import Job

WRONG_USE, NOTHING = 2, 3


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_folder",
        metavar="RUN",
        help="folder of one run, or of several with --name (such as runs/resnet50)",
    )
    parser.add_argument("--name", help="the run's name, where RUN holds several")


def load(args: argparse.Namespace) -> "Job":
    """The job that the arguments name, read to its end.

    Raises:
        ValueError: There is no such run, or RUN holds several and none was named.
    """
    from keras_mp.telemetry.runs import RunsFolder

    folder = RunsFolder(args.run_folder)
    folder.poll(seconds=None)
    if folder.error is not None:
        raise ValueError(folder.error)
    jobs = [job for job in folder.jobs if args.name in (None, job.name, job.run_id)]
    if len(jobs) == 1:
        return jobs[0]
    names = ", ".join(sorted(job.name for job in folder.jobs)) or "none"
    wanted = "one run" if args.name is None else f"a run named {args.name!r}"
    raise ValueError(f"Expected {wanted} in {args.run_folder}. Received: {names}")


def setting(text: str) -> tuple[str, Any]:
    """``growth_interval=500`` as (name, value)."""
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE. Received: {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        base, power, exponent = value.partition("**")
        if power:
            try:
                return name.strip(), float(base) ** float(exponent)
            except (ValueError, OverflowError):
                pass
        return name.strip(), value.strip()
