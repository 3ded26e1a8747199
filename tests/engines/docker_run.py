# SPDX-License-Identifier: Apache-2.0
"""Run a container by Docker, without loss of its output."""

from __future__ import annotations

import itertools
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from tests.engines.box import Box

    Done: TypeAlias = subprocess.CompletedProcess[str]

DOCKER = "/usr/bin/docker"
_numbers = itertools.count()


def run(box: Box, *words: str) -> Done:
    """Run a container to its end and remove it; return its output.

    On a busy machine Docker may lose the output of a container that ends at once, and report
    success: `docker run` prints nothing, and the log may also be empty (seen with 20.10 and 26.1).
    A container without any output runs once more.
    """
    done = _run_once(box, words)
    if done.returncode == 0 and not done.stdout and not done.stderr:
        done = _run_once(box, words)
    return done


def _run_once(box: Box, words: tuple[str, ...]) -> Done:
    name = f"run-{next(_numbers)}"
    done = box.call(DOCKER, "run", f"--name={name}", *words)
    if done.returncode == 0 and not done.stdout:
        logs = box.call(DOCKER, "logs", name)
        done = subprocess.CompletedProcess(done.args, 0, logs.stdout, done.stderr or logs.stderr)
    box.call(DOCKER, "rm", "--force", name)
    return done
