# SPDX-License-Identifier: Apache-2.0
"""Runs programs of engines and of the service manager, with a time limit and no terminal."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvct.errors import EngineError
from nvct.paths import DEFAULT_PATH_DIRS

Run: TypeAlias = Callable[..., "Completed"]
Enter: TypeAlias = Callable[[], None]

TIMEOUT_S = 30.0
NOT_FOUND = 127
TIMED_OUT = 124  # as of timeout(1)
NOT_ENTERED = 125
MARK = "nvct: errno "
VERSION = re.compile(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?")
ELSEWHERE = re.compile(r"(?:See \"|Hint: )")
"""Begins a line that only says where to find the reason, as systemctl's last lines do."""
ENV = {"PATH": ":".join(DEFAULT_PATH_DIRS), "HOME": "/root", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The result of a program: its exit status, standard output and standard error."""

    status: int
    out: str = ""
    err: str = ""

    @property
    def reason(self) -> str:
        """The last line of its output that says why; never empty."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        reasons = [line for line in lines if not ELSEWHERE.match(line)] or lines
        return reasons[-1] if reasons else f"exit status {self.status}"


def run(
    argv: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    *,
    env: dict[str, str] | None = None,
    enter: Enter | None = None,
    executable: str | None = None,
) -> Completed:
    """Run a program to its end; a missing one has status 127, a slow one is killed (124).

    `enter` is called in the child before the program starts. `executable` is the file to run, if
    that is not argv[0]. Raises OSError if `enter` raised it.
    """
    try:
        completed = subprocess.run(
            argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s,
            env=env or ENV, executable=executable, preexec_fn=_guarded(enter) if enter else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Completed(status=TIMED_OUT, err=f"no answer within {timeout_s:g} s")
    except FileNotFoundError:
        return Completed(status=NOT_FOUND, err=f"{argv[0]} was not found")
    except OSError as error:
        return Completed(status=NOT_FOUND, err=f"{argv[0]}: {error.strerror}")
    out, err = (data.decode(errors="replace") for data in (completed.stdout, completed.stderr))
    if enter and completed.returncode == NOT_ENTERED and err.startswith(MARK):
        code = int(err.removeprefix(MARK))
        raise OSError(code, os.strerror(code))
    return Completed(status=completed.returncode, out=out, err=err)


def _guarded(enter: Enter) -> Enter:
    """Return `enter`, but reporting an OSError by the child's exit status and standard error."""

    def guarded() -> None:
        try:
            enter()
        except OSError as error:
            os.write(2, f"{MARK}{error.errno or 0}".encode())
            os._exit(NOT_ENTERED)

    return guarded


def version(program: str, call: Run = run) -> tuple[int, ...]:
    """Return the version that a program prints, () if it prints none."""
    completed = call([program, "--version"], 10.0)
    match = VERSION.search(completed.out) if completed.status == 0 else None
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def dump(engine: str, program: str, call: Run = run) -> str:
    """Return the configuration in force, as the engine prints it; EngineError without one."""
    commands = {
        "containerd": ([program, "config", "dump"],),
        # From 1.30 on, `crio` itself has the command; before, crio-status.
        "crio": ([program, "status", "config"], ["crio-status", "config"]),
    }
    reason = ""
    for argv in commands[engine]:
        completed = call(argv)
        if completed.status == 0:
            return completed.out
        reason = reason or completed.reason
    raise EngineError(
        f"{engine} does not print its configuration: {reason}", hint="use --config-source=file"
    )
