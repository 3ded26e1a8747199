# SPDX-License-Identifier: Apache-2.0
"""The status files by which the parts of a GPU operator wait for each other.

Names and content as gpu-operator's nvidia-validator writes them (cmd/nvidia-validator/main.go):
driver-ready has five lines in the syntax of a shell, the others are empty.
"""

from __future__ import annotations

import os
import re

from nvct.errors import HostError
from nvct.linux.files import read_bytes, write_atomic

FOLDER = "/run/nvidia/validations"
DRIVER = "driver-ready"
TOOLKIT = "toolkit-ready"
DRIVER_CONTAINER = ".driver-ctr-ready"
LIMIT = 64 << 10
_LINE = re.compile(r"([A-Z_]+)=(.*)")


def write(folder: str, name: str, values: dict[str, str] | None = None) -> str:
    """Write a status file; return its path.

    Raises:
        HostError: it cannot be written.
    """
    path = f"{folder.rstrip('/')}/{name}"
    text = "".join(f"{key}={value}\n" for key, value in (values or {}).items())
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        write_atomic(path, text.encode(), mode=0o644)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error
    return path


def remove(folder: str, name: str) -> None:
    """Remove a status file if it exists.

    Raises:
        HostError: it cannot be removed.
    """
    path = f"{folder.rstrip('/')}/{name}"
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error


def read(path: str) -> dict[str, str]:
    """Return the values of a status file.

    Raises:
        HostError: it does not exist, so the part is not ready.
        DocumentError: it is no regular file.
    """
    try:
        text = read_bytes(path, LIMIT).decode(errors="replace")
    except OSError as error:
        raise HostError(
            f"{path}: {error.strerror}", hint="nvct validate driver writes it when all is well"
        ) from error
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2].strip("'\"") for match in matches if match}
