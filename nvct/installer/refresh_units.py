# SPDX-License-Identifier: Apache-2.0
"""Units of the host's systemd that publish again when the driver changes.

They are in /run, so a boot removes them, and the installer, which runs at each start of its pod,
writes them again. A host without systemd has none: what is published then holds until the next
start, and the device plugin does not use it for another driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from nvct.engine.command import Completed, Run
from nvct.errors import HostError
from nvct.installer import host, publication
from nvct.installer.request import Request
from nvct.linux.files import read_bytes, write_atomic

FOLDER = "/run/systemd/system"
NAME = "nvct-publish"
LIMIT = 1 << 16
SERVICE = """\
[Unit]
Description=Publish the CDI specification of NVIDIA GPUs for pods
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStartPre=-{toolkit}/nvct --quiet refresh
ExecStart={toolkit}/nvct publish --output={output}
TimeoutStartSec=180
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=30
"""
WATCH = """\
[Unit]
Description=Notice changes of the NVIDIA driver

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/etc/ld.so.cache
PathChanged=/dev/nvidiactl
PathChanged=/dev/nvidia-caps
PathChanged={config}
TriggerLimitIntervalSec=0
"""
"""Each installation of modules ends in depmod, of libraries in ldconfig."""


def start(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Write the units and start the watch, where systemd runs; a failure is a warning."""
    folder = publication.here(request, FOLDER)
    if not os.path.isdir(folder):
        return
    changed = [_write(f"{folder}/{name}", text) for name, text in _units(request).items()]
    run = run or host.programs_of(request)
    done = run(["systemctl", "daemon-reload"]) if any(changed) else None
    if done is None or not done.status:
        done = run(["systemctl", "start", f"{NAME}.path"])
    _warn(done, say)


def stop(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Stop and remove the units.

    Raises:
        HostError: they cannot be removed.
    """
    folder = publication.here(request, FOLDER)
    paths = [f"{folder}/{name}" for name in _units(request)]
    if not any(os.path.lexists(path) for path in paths):
        return
    run = run or host.programs_of(request)
    _warn(run(["systemctl", "stop", f"{NAME}.path", f"{NAME}.service"]), say)
    for path in paths:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise HostError(f"{path} cannot be removed: {error.strerror}") from error
    _warn(run(["systemctl", "daemon-reload"]), say)
    say(f"removed {FOLDER}/{NAME}.path and {NAME}.service")


def _units(request: Request) -> dict[str, str]:
    service = SERVICE.format(toolkit=request.toolkit, output=publication.PATH)
    return {
        f"{NAME}.service": service,
        f"{NAME}.path": WATCH.format(config=request.config_toml),
    }


def _write(path: str, text: str) -> bool:
    """Write a unit; return whether it changed."""
    data = text.encode()
    with contextlib.suppress(OSError):
        if read_bytes(path, LIMIT) == data:
            return False
    try:
        write_atomic(path, data, mode=0o644)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error
    return True


def _warn(done: Completed, say: Callable[[str], None]) -> None:
    if done.status:
        say(f"warning: the host's systemd: {done.reason}")
