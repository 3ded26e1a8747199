# SPDX-License-Identifier: Apache-2.0
"""How the programs end: an error is one line on stderr and an exit status."""

from __future__ import annotations

import errno
import os
import sys

from nvct.errors import HostError, NvctError, UsageError, line, unexpected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

INCUMBENT = "nvidia-ctk"
STOPPED = 130  # 128 + SIGINT, as in shells


def run(name: str, call: Callable[[], int | None]) -> NoReturn:
    """Run a program and exit; the only place that turns an error into a line and exit status."""
    try:
        status = call()
        sys.stdout.flush()
    except NvctError as error:
        _say(line(name, error))
        # In the incumbent, a usage error has the status of all errors.
        is_usage = error.exit_status == UsageError.exit_status
        status = 1 if is_usage and name == INCUMBENT else error.exit_status
    except KeyboardInterrupt:
        _say(f"\n{name}: stopped")
        status = STOPPED
    except BrokenPipeError:
        status = 1
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            _bug(name, error)
        else:
            full = HostError(
                f"the output cannot be written: {error.strerror}", hint="free space for it"
            )
            _say(line(name, full))
        status = 1
    except Exception as error:
        _bug(name, error)
        status = 1
    _drop_unwritable_output()
    sys.exit(status or 0)


def _drop_unwritable_output() -> None:
    """Let Python's flush at exit succeed: if it failed, it would print more, and set a status."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _bug(name: str, error: Exception) -> None:
    if "NVCT_DEBUG" in os.environ:
        import traceback

        traceback.print_exc()
    _say(line(name, unexpected(error)))


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
