# SPDX-License-Identifier: Apache-2.0
"""Run a container by Docker, and lose nothing of what it prints."""

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
    """Run a container to its end and remove it; return what it printed.

    On a busy machine an attached `docker run` of a container that ends at once may print nothing
    and succeed. Docker's log of the container has it then.
    """
    name = f"run-{next(_numbers)}"
    done = box.call(DOCKER, "run", f"--name={name}", *words)
    if done.returncode == 0 and not done.stdout:
        logs = box.call(DOCKER, "logs", name)
        done = subprocess.CompletedProcess(done.args, 0, logs.stdout, done.stderr or logs.stderr)
    box.call(DOCKER, "rm", "--force", name)
    return done
