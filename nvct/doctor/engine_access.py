# SPDX-License-Identifier: Apache-2.0
"""Decides how containers of one engine can get GPUs: by a runtime, by CDI, by Docker's hook.

`nvct status`, `nvct doctor` and `nvct runtime explain` show this decision. Cold; only reads.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from nvct.cdi import engines
from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.engine.control.status import is_nvidia
from nvct.engine.docker import config as docker
from nvct.paths import (
    CDI_SPEC_DIRS,
    DEFAULT_PATH_DIRS,
    GPU_KIND,
    HOOK_PROGRAM,
    RUNTIME_HOOK_PROGRAM,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.registry import Registry
    from nvct.doctor.model import Severity
    from nvct.engine.control.status import Status
    from nvct.engine.detected_engine import Engine

CDI_NAMES = {"crio": "cri-o"}
"""Names of `nvct.engine` that `nvct.cdi` spells otherwise."""
PODS = ("containerd", "crio")
"""Engines of pods, which name a handler by a RuntimeClass."""
BY_CDI = {
    "docker": f"`--device {GPU_KIND}=all`",
    "podman": f"`--device {GPU_KIND}=all`",
    "containerd": "claims and CDI annotations",
    "crio": "claims and CDI annotations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How containers of an engine can get GPUs.

    Attributes:
        runtimes: registered runtimes of NVIDIA's.
        cdi: whether the engine gives CDI devices of NVIDIA's; None if that cannot be seen.
        why: why CDI gives none, "" if it does.
        hook: the hook by which Docker serves `--gpus`, "" if there is none.
        is_known: whether the engine's configuration could be read.
    """

    runtimes: tuple[str, ...] = ()
    cdi: bool | None = None
    why: str = ""
    hook: str = ""
    is_known: bool = True

    @property
    def gives_gpus(self) -> bool:
        """Whether there is a way at all."""
        return bool(self.runtimes or self.cdi or self.hook)


def of(status: Status, registry: Registry) -> Access:
    """Return how containers of an engine of this host can get GPUs.

    Args:
        status: of the engine.
        registry: the CDI specifications of this host.
    """
    cdi, why = _by_cdi(status, registry)
    return Access(
        runtimes=status.registered or _in_force(status),
        cdi=cdi,
        why=why,
        hook=_hook(status.engine) if status.engine.engine == "docker" else "",
        is_known=status.in_force is not None,
    )


def _in_force(status: Status) -> tuple[str, ...]:
    """Return the runtimes of NVIDIA's that a running engine knows: also by its command line."""
    handlers = status.in_force.handlers if status.in_force else {}
    return tuple(sorted(name for name, path in handlers.items() if is_nvidia(name, path)))


def spec_folders(status: Status) -> tuple[str, ...]:
    """Return the folders of specifications that an engine reads."""
    state = status.in_force
    return tuple(state.spec_dirs) if state and state.spec_dirs else tuple(CDI_SPEC_DIRS)


def finding(engine: Engine, access: Access, *, is_needed: bool) -> Finding | None:
    """Return what is to be said of an engine without a runtime of NVIDIA's; None of another.

    Args:
        engine: as it was detected.
        access: how its containers can get GPUs.
        is_needed: whether it is a fault if they cannot.
    """
    if access.runtimes:
        return None
    name = " ".join(word for word in (engine.engine, engine.version) if word)
    if not access.is_known:
        text = f"{name}: its configuration is not readable, or not asked for: whether it has a "
        text += "runtime of NVIDIA's cannot be told"
        return Finding(reason=Reason.EngineNotConfigured, severity="unknown", evidence=text)
    severity: Severity = "note"
    if not access.gives_gpus and access.cdi is None:
        severity = "unknown"
    elif not access.gives_gpus and is_needed:
        severity = "warning"
    text = f"{name}: no runtime of NVIDIA's{_consequence(engine, access)}"
    remedy = _remedy(engine, access) if severity == "warning" else ""
    return Finding(
        reason=Reason.EngineNotConfigured, severity=severity, evidence=text, remedy=remedy
    )


def _consequence(engine: Engine, access: Access) -> str:
    """Return what works and what fails without a registered runtime."""
    fails = "a RuntimeClass nvidia" if engine.engine in PODS else "`--runtime=nvidia`"
    if access.gives_gpus:
        ways = ["`--gpus` by its hook"] if access.hook else []
        ways += [f"{BY_CDI[engine.engine]} by CDI"] if access.cdi else []
        more = "" if engine.leave else f" until `{_configure(engine)}`"
        return f"; {' and '.join(ways)} gives GPUs, {fails} fails{more}"
    if access.cdi is None:
        return f": {fails} fails; {access.why}"
    return f", and no GPU by CDI: {access.why}"


def _remedy(engine: Engine, access: Access) -> str:
    if engine.leave:
        return f"See what `nvct runtime status` says of {engine.platform or engine.engine}."
    if engine.engine == "podman":
        return "Run `nvct publish`."
    return f"Run `{_configure(engine)}`" + (", or `nvct publish`." if _is_on(access) else ".")


def _configure(engine: Engine) -> str:
    return f"nvct runtime configure --runtime={engine.engine}"


def _is_on(access: Access) -> bool:
    """Return whether only a specification is missing."""
    return access.why.startswith("no specification")


def _by_cdi(status: Status, registry: Registry) -> tuple[bool | None, str]:
    """Return whether an engine gives CDI devices of NVIDIA's, and why not."""
    engine, state = status.engine, status.in_force
    if state is None:
        return None, "whether CDI is on cannot be told"
    is_on = state.cdi
    if engine.engine == "docker":
        is_on = docker.cdi_is_on(engine.numbers, said=state.cdi)
    if is_on is None:
        return None, "whether CDI is on cannot be told"
    if not is_on:
        return False, "CDI is off"
    if status.running and any(name.startswith(f"{GPU_KIND}=") for name in status.running.devices):
        return True, ""
    return _by_specs(status, registry)


def _by_specs(status: Status, registry: Registry) -> tuple[bool | None, str]:
    """Return whether a specification of NVIDIA's GPUs is where the engine reads it."""
    name = CDI_NAMES.get(status.engine.engine, status.engine.engine)
    folders = spec_folders(status)
    files = {file.path: file for file in registry.specs if file.spec.get("kind") == GPU_KIND}
    read = [path for path in files if os.path.dirname(path) in _with_links(folders)]
    if not read:
        return False, f"no specification of {GPU_KIND} in {' and '.join(folders)}"
    version = status.engine.version
    refusals = [
        engines.refusal(files[path].spec, name, version) if version else "" for path in read
    ]
    if all(refusals):
        return False, f"{read[0]}: {refusals[0]}"
    return True, ""


def _with_links(folders: tuple[str, ...]) -> set[str]:
    """Return folders under both names that /run has."""
    more = {"/run" + folder.removeprefix("/var/run") for folder in folders if "/var/run" in folder}
    return {
        *folders,
        *more,
        *("/var" + folder for folder in folders if folder.startswith("/run/")),
    }


def _hook(engine: Engine) -> str:
    """Return the program by which dockerd serves `--gpus`, "" if it is not on dockerd's PATH."""
    names = [RUNTIME_HOOK_PROGRAM]
    if engine.numbers >= docker.GPUS_BY_CDI:
        names.append(HOOK_PROGRAM)
    folders = ":".join(DEFAULT_PATH_DIRS) if engine.path is None else engine.path
    found = (shutil.which(name, path=folders or os.devnull) for name in names)
    return next((path for path in found if path), "")
