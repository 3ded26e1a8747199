# SPDX-License-Identifier: Apache-2.0
"""Has the host publish its CDI specification, and withdraws it.

The installed nvct runs in the host's root. Its specification can give the driver's files as one
view, which is made on the host, and the device plugin takes them from there. A specification of
the same kind that another program wrote stays, and nothing is published beside it: engines refuse
a device that two files describe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from nvct.cdi.check import mounted
from nvct.cdi.read import registry
from nvct.cdi.types import Hook, Spec
from nvct.engine.command import Run
from nvct.errors import HostError
from nvct.installer import host
from nvct.installer.request import Request
from nvct.paths import GPU_KIND

PATH = "/run/cdi/nvidia.yaml"
"""Below /var/run/cdi by a name without a link, because a link would lead into this container."""
FOLDERS = ("/etc/cdi", "/run/cdi")
TIMEOUT_S = 180.0
"""As for the packages' unit: eight GPUs that nothing else uses take some twenty seconds to start,
and a new driver's view some seconds."""


def publish(request: Request, say: Callable[[str], None], run: Run | None = None) -> None:
    """Write the host's specification if it has a driver; a failure is a warning."""
    others = [path for path, spec in _specs(request) if not _is_ours(request, spec)]
    if others:
        say(f"{others[0]} describes {GPU_KIND} already: nothing is published beside it")
        return
    run = run or host.programs_of(request)
    done = run([request.program("nvct"), "publish", f"--output={PATH}"], TIMEOUT_S)
    if done.status:
        say(f"warning: the CDI specification of this host was not published: {done.reason}")
    else:
        published = next((spec for path, spec in _specs(request) if path == PATH), None)
        say(f"published {PATH}, {_form(published)}" if published else f"nothing: {done.reason}")


def withdraw(request: Request, say: Callable[[str], None]) -> None:
    """Remove what `publish` wrote.

    Raises:
        HostError: it cannot be removed.
    """
    for path, spec in _specs(request):
        if path == PATH and _is_ours(request, spec):
            try:
                os.unlink(here(request, path))
            except OSError as error:
                raise HostError(f"{path} cannot be removed: {error.strerror}") from error
            say(f"removed {path}")


def _specs(request: Request) -> Iterator[tuple[str, Spec]]:
    """Yield the specifications of this host's GPUs, and their paths on the host."""
    for folder in FOLDERS:
        for file in registry.scan((here(request, folder),)).specs:
            if file.spec["kind"] == GPU_KIND:
                yield f"{folder}/{os.path.basename(file.path)}", file.spec


def _is_ours(request: Request, spec: Spec) -> bool:
    """Return whether the installed nvct wrote a specification: its hooks are installed, too."""
    return any(hook["path"].startswith(f"{request.toolkit}/") for hook in _hooks(spec))


def _form(spec: Spec) -> str:
    mounts = spec.get("containerEdits", {}).get("mounts", ())
    is_view = any(mounted.is_view(mount) for mount in mounts)
    return "with the driver's files as one mount" if is_view else "with a mount for each file"


def _hooks(spec: Spec) -> Iterator[Hook]:
    for edits in (spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])):
        yield from edits.get("hooks", ())


def here(request: Request, path: str) -> str:
    """Return a path of the host as a path of this process."""
    root = request.host_root if os.path.isdir(request.host_root) else "/"
    return host.HostFiles(root).at(path)
