# SPDX-License-Identifier: Apache-2.0
"""The machine that MIG commands change, and the files that they read and write."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from nvct.agent.core.instance import FOLDER, SOCKET
from nvct.cli.context import settings_in_force
from nvct.errors import DriverNotFoundError, HostError, NvctError, OSErrorsAs, UsageError
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.session import shared_session
from nvct.host.roots import Roots
from nvct.linux import files
from nvct.mig import config, pause
from nvct.mig.apply import Machine
from nvct.mig.journal import Journal
from nvct.mig.pause import PAUSE_S
from nvct.mig.smi import find, reset

STDIN = "-"


def machine_of(given: object) -> Machine:
    """Return this machine, or a caller's; DriverNotFoundError if there is no NVML here."""
    if isinstance(given, Machine):
        return given
    settings = settings_in_force()
    roots = Roots(driver_root=settings.driver_root or "/", dev_root=settings.dev_root or None)
    try:
        library = nvml_library(roots)
    except DriverNotFoundError as error:
        raise DriverNotFoundError(
            error.message, hint="install NVIDIA's driver, or set its root in config.toml"
        ) from error
    serves_a_node = os.path.exists(f"{FOLDER}/{SOCKET}")  # an agent, which offers devices
    return Machine(
        session=shared_session(library),
        roots=roots,
        journal=Journal(FOLDER),
        reset=partial(reset, smi=find(roots.driver_root, library)),
        pause=partial(pause.announce, FOLDER, wait_s=PAUSE_S if serves_a_node else 0),
    )


@contextlib.contextmanager
def failing(prefix: str) -> Iterator[None]:
    """Turn errors of the block into a HostError with a prefix, as in NVIDIA's program."""
    try:
        yield
    except NvctError as error:
        raise HostError(f"{prefix}: {error.message}", hint=error.hint) from error


def read(path: str) -> str:
    """Return a file, or standard input for -, as text; UsageError if it cannot be read."""
    if path == STDIN:
        return sys.stdin.read()
    try:
        return files.read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"read error: {path}: {reason}") from error


def write(path: str, text: str) -> None:
    """Replace a file atomically; HostError if it cannot be written."""
    with OSErrorsAs(HostError, f"{path} cannot be written"):
        mode = None if os.path.exists(path) else 0o644
        files.write_atomic(path, text.encode(), mode=mode, follow=True)


def require(**values: str) -> None:
    """Raise UsageError if an option is empty."""
    missing = [name.replace("_", "-") for name, value in values.items() if not value]
    if missing:
        hint = "nvct mig configs prints the names" if "selected-config" in missing else ""
        raise UsageError(f"missing required flags '{', '.join(missing)}'", hint=hint)


def hooks(path: str, env: Mapping[str, str | bool]) -> Callable[[str], None]:
    """Return a function that runs a hook of the file by its name, with the command's variables."""
    found: config.Hooks = {}
    if path:
        with failing("error parsing hooks file"):
            found = config.parse_hooks(read(path))
    variables = {
        f"MIG_PARTED_{name}": str(value).lower() if isinstance(value, bool) else value
        for name, value in env.items()
    }
    shows = "NVCT_DEBUG" in os.environ
    return lambda name: config.run_hooks(found, name, variables, shows_output=shows)
