# SPDX-License-Identifier: Apache-2.0
"""Publishes the host's CDI specification, keeps it up to date, and removes it.

The installed nvct runs in the host's root, so the specification can give the driver's files as one
view, which is made on the host; the device plugin reads that specification. If another program has
written one of the same kind, nothing is published: engines refuse a device that two files
describe.

Units of the host's systemd publish again when the driver changes. They are in /run, so a boot
removes them, and the installer, which runs at each start of its pod, writes them again. Without
systemd, a specification stays as it is until the pod's next start, and the device plugin does not
use it for another driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from nvct.cdi import versions
from nvct.cdi.check import mounted
from nvct.cdi.read import registry
from nvct.cdi.types import Spec
from nvct.engine.command import Completed, Run
from nvct.errors import HostError, OSErrorsAs
from nvct.installer import host
from nvct.installer.host import here
from nvct.installer.request import Request
from nvct.linux.files import read_bytes, write_atomic
from nvct.paths import GPU_KIND

PATH = "/run/cdi/nvidia.yaml"
"""In /var/run/cdi, but by a path without links, which would lead into this container."""
FOLDERS = ("/etc/cdi", "/run/cdi")
TIMEOUT_S = 180.0
"""As for the packages' unit: eight GPUs that nothing else uses take some twenty seconds to start,
and a new driver's view some seconds."""


def publish(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Write the host's specification if it has a driver; a failure is a warning."""
    others = [path for path, spec in _specs(request, GPU_KIND) if not _is_ours(request, spec)]
    if others:
        say(f"{others[0]} describes {GPU_KIND} already: nothing is published beside it")
        return
    run = run or host.programs_of(request)
    done = run([request.program("nvct"), "publish", f"--output={PATH}"], TIMEOUT_S)
    if done.status:
        say(f"warning: the CDI specification of this host was not published: {done.reason}")
    else:
        published = next((spec for path, spec in _specs(request, GPU_KIND) if path == PATH), None)
        none = f"nothing was published: {done.reason}"
        say(f"published {PATH}, {_form(published)}" if published else none)


def withdraw(request: Request, say: Callable[[str], None]) -> None:
    """Remove what `publish` wrote, and the specification of management containers.

    Raises HostError if one cannot be removed.
    """
    name = f"{request.cdi_kind.replace('/', '-')}.yaml"  # the installer's default
    for path, spec in _specs(request, GPU_KIND, request.cdi_kind):
        is_made = path == PATH or os.path.basename(path) == name
        if is_made and _is_ours(request, spec):
            with OSErrorsAs(HostError, f"{path} cannot be removed"):
                os.unlink(here(request, path))
            say(f"removed {path}")


def _specs(request: Request, *kinds: str) -> Iterator[tuple[str, Spec]]:
    for folder in FOLDERS:
        for file in registry.scan((here(request, folder),)).specs:
            if file.spec["kind"] in kinds:
                yield f"{folder}/{os.path.basename(file.path)}", file.spec


def _is_ours(request: Request, spec: Spec) -> bool:
    """Return whether the installed nvct wrote a specification: its hooks are installed, too."""
    hooks = versions.objects(spec, "hooks")
    return any(hook["path"].startswith(f"{request.toolkit}/") for hook in hooks)


def _form(spec: Spec) -> str:
    mounts = spec.get("containerEdits", {}).get("mounts", ())
    is_view = any(mounted.is_view(mount) for mount in mounts)
    return "with the driver's files as one mount" if is_view else "with a mount for each file"


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
"""Installing modules ends with depmod, installing libraries with ldconfig."""


def start_watch(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Write the units and start the watch if systemd runs; a failure is a warning."""
    folder = here(request, FOLDER)
    if not os.path.isdir(folder):
        return
    changed = [_write(f"{folder}/{name}", text) for name, text in _units(request).items()]
    run = run or host.programs_of(request)
    done = run(["systemctl", "daemon-reload"]) if any(changed) else None
    if done is None or not done.status:
        done = run(["systemctl", "start", f"{NAME}.path"])
    _warn(done, say)


def stop_watch(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Stop and remove the units. Raises HostError if they cannot be removed."""
    folder = here(request, FOLDER)
    paths = [f"{folder}/{name}" for name in _units(request)]
    if not any(os.path.lexists(path) for path in paths):
        return
    run = run or host.programs_of(request)
    _warn(run(["systemctl", "stop", f"{NAME}.path", f"{NAME}.service"]), say)
    for path in paths:
        with (
            OSErrorsAs(HostError, f"{path} cannot be removed"),
            contextlib.suppress(FileNotFoundError),
        ):
            os.unlink(path)
    _warn(run(["systemctl", "daemon-reload"]), say)
    say(f"removed {FOLDER}/{NAME}.path and {NAME}.service")


def _units(request: Request) -> dict[str, str]:
    service = SERVICE.format(toolkit=request.toolkit, output=PATH)
    return {f"{NAME}.service": service, f"{NAME}.path": WATCH.format(config=request.config_toml)}


def _write(path: str, text: str) -> bool:
    data = text.encode()
    with contextlib.suppress(OSError):
        if read_bytes(path, LIMIT) == data:
            return False
    with OSErrorsAs(HostError, f"{path} cannot be written"):
        write_atomic(path, data, mode=0o644)
    return True


def _warn(done: Completed, say: Callable[[str], None]) -> None:
    if done.status:
        say(f"warning: the host's systemd: {done.reason}")
