# SPDX-License-Identifier: Apache-2.0
"""The status files by which the parts of a GPU operator wait for each other.

Names and content are those of gpu-operator's nvidia-validator (cmd/nvidia-validator/main.go):
driver-ready has five lines in the syntax of a shell, the other files are empty. Programs with
fewer rights can change the folder, so no link is followed, and only the five values are used.
"""

from __future__ import annotations

import re
from contextlib import suppress

from nvct.errors import HostError, OSErrorsAs
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.files import split

FOLDER = "/run/nvidia/validations"
OWN_FOLDER = "/run/nvct-driver"  # the chart's: only installer and nvml-worker can write there
WORKER_SOCKET = "nvml.sock"  # in that folder: where the worker listens
DRIVER = "driver-ready"
TOOLKIT = "toolkit-ready"
DRIVER_CONTAINER = ".driver-ctr-ready"
KEYS = (
    "IS_HOST_DRIVER", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH", "NVIDIA_DEV_ROOT",
    "DEV_ROOT_CTR_PATH",
)  # fmt: skip
LIMIT = 64 << 10
_LINE = re.compile(r"([A-Z_]+)=(.*)")


def write(folder: str, name: str, values: dict[str, str] | None = None) -> str:
    """Write a status file; return its path. HostError, or UnsafePathError for a linked folder."""
    path = f"{folder.rstrip('/')}/{name}"
    text = "".join(f"{key}={value}\n" for key, value in (values or {}).items())
    with (
        OSErrorsAs(HostError, f"{path} cannot be written"),
        SharedFolder.open(folder, create=0o755) as shared,
    ):
        shared.write(name, text.encode(), mode=0o644)
    return path


def remove(folder: str, name: str) -> None:
    """Remove a status file if it exists; HostError, or UnsafePathError for a linked folder."""
    with (
        OSErrorsAs(HostError, f"{folder.rstrip('/')}/{name} cannot be removed"),
        suppress(FileNotFoundError),
        SharedFolder.open(folder) as shared,
    ):
        shared.unlink(name)


def read(path: str) -> dict[str, str]:
    """Return a status file's values; HostError if it does not exist. UnsafePathError."""
    folder, name = split(path)
    with (
        OSErrorsAs(HostError, path, hint="nvct validate driver writes it if the driver works"),
        SharedFolder.open(folder) as shared,
    ):
        text = shared.read(name, LIMIT).decode(errors="replace")
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    values = {match[1]: match[2].strip("'\"") for match in matches if match}
    return {key: values[key] for key in KEYS if key in values}
