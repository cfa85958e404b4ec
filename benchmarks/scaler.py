"""What loss scaling costs on each backend: runs the three scaler benchmarks, one after the other.

    python benchmarks/scaler.py [--json FOLDER] [--backend torch ...]

Each backend in a process of its own; its script says what it compares and how. The targets and the
figures reached, misses with their reasons, are in ``benchmarks/README.md``.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

BACKENDS = ("torch", "tensorflow", "jax")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FOLDER", help="write scaler_<backend>.json there")
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=BACKENDS)
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent
    status = 0
    for backend in arguments.backend:
        command = [sys.executable, str(here / f"scaler_{backend}.py")]
        if arguments.json:
            Path(arguments.json).mkdir(parents=True, exist_ok=True)
            command += ["--json", str(Path(arguments.json) / f"scaler_{backend}.json")]
        print(f"\n== {backend}", flush=True)
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        status |= subprocess.run(command, env=environment).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
