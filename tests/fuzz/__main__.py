# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz [TARGET ...] --executions N`: run fuzz targets and report.

Guided by coverage where atheris is installed, else by chance alone. Exit status 1 if anything
was found; each finding is a file that `--replay FILE TARGET` runs again.
"""

import argparse
import importlib.util
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz import loop
from tests.fuzz.outcome import try_one
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--executions", type=int, default=100_000, help="of each target")
    parser.add_argument("--seed", type=int, help="of the random numbers; a new one if not given")
    parser.add_argument("--engine", choices=("auto", "atheris", "plain"), default="auto")
    parser.add_argument("--findings", type=Path, help="folder for failing inputs")
    parser.add_argument("--replay", type=Path, help="a saved input to run again")
    options = parser.parse_args()
    unknown = [name for name in options.target if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    names = options.target or list(TARGETS)
    if options.replay:
        accepted = try_one(TARGETS[names[0]], options.replay.read_bytes())
        print("accepted" if accepted else "refused")
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    folder = options.findings or Path(tempfile.mkdtemp(prefix="nvct-fuzz-findings-"))
    guided = importlib.util.find_spec("atheris") is not None
    if options.engine == "atheris" and not guided:
        parser.error("atheris is not installed: pip install atheris")
    print(f"seed {seed}, engine {'atheris' if guided and options.engine != 'plain' else 'plain'}")
    bad = 0
    for name in names:
        if guided and options.engine != "plain":
            from tests.fuzz import guided as engine

            bad += engine.fuzz(name, options.executions, seed, folder)
        else:
            bad += _plain(name, options.executions, seed, folder)
    return 1 if bad else 0


def _plain(name: str, executions: int, seed: int, folder: Path) -> int:
    result = loop.fuzz(TARGETS[name], executions, seed, folder)
    print(
        f"{name:8} {result.executions:9} executions, {result.accepted:8} accepted,"
        f" {result.seconds:7.1f} s, slowest {result.slowest * 1000:.0f} ms,"
        f" {len(result.failures)} findings",
        flush=True,
    )
    for text, path in result.failures:
        print(f"  {text}\n    {path}")
    return len(result.failures)


if __name__ == "__main__":
    sys.exit(main())
