# SPDX-License-Identifier: Apache-2.0
"""Run a container by Docker, without loss of its output."""

import itertools
import subprocess
from typing import TypeAlias

from tests.engines.box import Box

Done: TypeAlias = subprocess.CompletedProcess[str]

DOCKER = "/usr/bin/docker"
_numbers = itertools.count()


def run(box: Box, *arguments: str, client: str = DOCKER) -> Done:
    """Run a container to its end and remove it; return its output.

    On a busy machine Docker may lose the output of a container that ends at once, and report only
    its status: `docker run` prints nothing, and the log may also be empty (seen with 20.10 and
    26.1). A container without any output runs once more.
    """
    completed = _run_once(box, arguments, client)
    if not completed.stdout and not completed.stderr:
        completed = _run_once(box, arguments, client)
    return completed


def _run_once(box: Box, arguments: tuple[str, ...], client: str) -> Done:
    name = f"run-{next(_numbers)}"
    completed = box.call(client, "run", f"--name={name}", *arguments)
    if not completed.stdout and (completed.returncode == 0 or not completed.stderr):
        logs = box.call(client, "logs", name)
        completed = subprocess.CompletedProcess(
            completed.args, completed.returncode, logs.stdout, completed.stderr or logs.stderr
        )
    box.call(client, "rm", "--force", name)
    return completed
