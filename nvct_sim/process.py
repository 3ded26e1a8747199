# SPDX-License-Identifier: Apache-2.0
"""Starts a program in a process that first runs a function, for example to make mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TypeAlias

from nvct.errors import HostError, NvctError, UsageError

Stream: TypeAlias = "int | IO[bytes] | None"

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit statuses: POSIX, Shell Command Language, 2.8.2


def spawn(
    argv: Sequence[str],
    prepare: Callable[[], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
) -> subprocess.Popen[bytes]:
    """Start a program after prepare(); HostError if that fails, UsageError if the program does."""
    reader, writer = os.pipe()

    def child() -> None:
        try:
            prepare()
        except Exception as error:  # the parent process reports any exception
            os.write(writer, _describe(error).encode())
            raise

    try:
        return subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr,
            preexec_fn=child,  # noqa: PLW1509  mounts have to be made in the child
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        os.set_blocking(reader, False)  # the write end is still open in this process
        message, _, hint = os.read(reader, 4096).decode().partition("\0")
        raise HostError(message or str(error), hint=hint) from error
    except OSError as error:
        raise not_executed(argv[0], error) from error
    finally:
        os.close(writer)
        os.close(reader)


def not_executed(program: str, error: OSError) -> UsageError:
    """Return the error for a program that execve(2) refuses, with the exit status of a shell."""
    refused = UsageError(f"cannot run {program!r}: {error.strerror}")
    refused.exit_status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return refused


def _describe(error: Exception) -> str:
    return f"{error.message}\0{error.hint}" if isinstance(error, NvctError) else repr(error)
