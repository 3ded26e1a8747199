# SPDX-License-Identifier: Apache-2.0
"""Decides how containers of one engine can get GPUs: by a runtime, by CDI, by Docker's hook.

`nvct status`, `nvct doctor` and `nvct runtime explain` show this decision. Cold; only reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nvct.cdi.check import engines
from nvct.cdi.read.registry import Registry, SpecFile
from nvct.compile.published_spec import REFRESH_ENV
from nvct.doctor.model import Finding, Severity
from nvct.doctor.reasons import Reason
from nvct.engine import docker
from nvct.engine.model import Engine, State
from nvct.engine.status import Status, is_nvidia
from nvct.paths import CDI_SPEC_DIRS, DEFAULT_PATH_DIRS, GPU_KIND, RUNTIME_HOOK_PROGRAM

CDI_NAMES = {"crio": "cri-o"}  # Names of `nvct.engine` that `nvct.cdi` spells otherwise
VENDOR = ".nvidia.com"
VERSION_ENV = "NVIDIA_CTK_CDI_GENERATE_CDI_VERSION_MAX"
PODS = ("containerd", "crio")  # Engines of pods, which name a handler by a RuntimeClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How containers of an engine can get GPUs."""

    runtimes: tuple[str, ...] = ()
    # whether the engine gives CDI devices of NVIDIA's; None if that cannot be seen
    cdi: bool | None = None
    device: str = ""  # the qualified name of one that it gives, "" if none is known
    why: str = ""  # why CDI gives none, "" if it does
    # what makes a specification of this host readable, "" if another thing is wrong
    remedy: str = ""
    hook: str = ""
    is_known: bool = True

    @property
    def gives_gpus(self) -> bool:
        """Whether there is a way at all."""
        return bool(self.runtimes or self.cdi or self.hook)


def of(status: Status, registry: Registry) -> Access:
    """Return how containers of an engine of this host can get GPUs."""
    return replace(
        _by_cdi(status, registry),
        runtimes=status.registered or nvidia_handlers(status.in_force),
        hook=_hook(status.engine) if status.engine.engine == "docker" else "",
        is_known=status.in_force is not None,
    )


def nvidia_handlers(state: State | None) -> tuple[str, ...]:
    """Return the runtimes of NVIDIA's that an engine knows: also by its command line."""
    handlers = state.handlers if state else {}
    return tuple(sorted(name for name, path in handlers.items() if is_nvidia(name, path)))


def _spec_folders(status: Status) -> tuple[str, ...]:
    state = status.in_force
    return tuple(state.spec_dirs) if state and state.spec_dirs else tuple(CDI_SPEC_DIRS)


def finding(engine: Engine, access: Access, *, is_needed: bool) -> Finding | None:
    """Return what is to be said of an engine without a runtime of NVIDIA's: a fault if needed."""
    if access.runtimes:
        return None
    name = " ".join(word for word in (engine.engine, engine.version) if word)
    if not access.is_known:
        text = f"{name}: its configuration is not readable, or not asked for: whether it has a "
        text += "runtime of NVIDIA's cannot be told"
        severity: Severity = "unknown" if is_needed else "note"
        return Finding(Reason.EngineNotConfigured, severity, text)
    severity = "note"
    if is_needed and not access.gives_gpus:
        severity = "unknown" if access.cdi is None else "warning"
    text = f"{name}: no runtime of NVIDIA's{_consequence(engine, access)}"
    remedy = _remedy(engine, access) if severity == "warning" else ""
    return Finding(Reason.EngineNotConfigured, severity, text, remedy)


def _consequence(engine: Engine, access: Access) -> str:
    fails = "a RuntimeClass nvidia" if engine.engine in PODS else "`--runtime=nvidia`"
    if access.gives_gpus:
        ways = ["`--gpus` by its hook"] if access.hook else []
        by_name = f"`--device {access.device or f'{GPU_KIND}=0'}` by CDI"
        by_cdi = "CDI, by claims and annotations," if engine.engine in PODS else by_name
        ways += [by_cdi] if access.cdi else []
        more = "" if engine.leave else f" until `{_configure(engine)}`"
        verb = "give" if len(ways) > 1 else "gives"
        return f"; {' and '.join(ways)} {verb} GPUs, {fails} fails{more}"
    if access.cdi is None:
        return f": {fails} fails; {access.why}"
    return f", and no GPU by CDI: {access.why}"


def _remedy(engine: Engine, access: Access) -> str:
    if access.remedy:
        return access.remedy
    if engine.leave:
        return f"See what `nvct runtime status` says of {engine.platform or engine.engine}."
    if engine.engine == "podman":
        return "Run `nvct publish`."
    lacks_only_a_spec = access.why.startswith("no specification")
    more = ", or `nvct publish`" if lacks_only_a_spec else ""
    return f"Run `{_configure(engine)}`{more}."


def _configure(engine: Engine) -> str:
    return f"nvct runtime configure --runtime={engine.engine}"


def _by_cdi(status: Status, registry: Registry) -> Access:
    engine, state = status.engine, status.in_force
    is_on = state.cdi if state else None
    if state and engine.engine == "docker":
        is_on = docker.cdi_is_on(engine.numbers, said=state.cdi)
    if is_on is None:
        return Access(why="whether CDI is on cannot be told")
    if not is_on:
        return Access(cdi=False, why="CDI is off")
    listed = status.running.devices if status.running else ()
    if device := _one_of(listed):
        return Access(cdi=True, device=device)
    return _by_specs(status, registry)


def _is_nvidias(kind: str) -> bool:
    """Return whether a kind is of GPUs: also of a device plugin, such as k8s.gpu.nvidia.com."""
    vendor = kind.partition("/")[0]
    return kind == GPU_KIND or (vendor.endswith(VENDOR) and not vendor.startswith("management"))


def _one_of(names: Iterable[str]) -> str:
    """Return a device of NVIDIA's, the one of all GPUs if there is one; "" for none."""
    found = [name for name in names if _is_nvidias(name.partition("=")[0])]
    every = f"{GPU_KIND}=all"
    return every if every in found else next(iter(found), "")


def _by_specs(status: Status, registry: Registry) -> Access:
    refused: list[Access] = []
    for file, why, remedy in specs_read(status, registry):
        kind = file.spec["kind"]
        if _is_nvidias(kind) and not why:
            devices = (f"{kind}={device['name']}" for device in file.spec["devices"])
            return Access(cdi=True, device=_one_of(devices))
        if _is_nvidias(kind):
            refused.append(Access(cdi=False, why=why, remedy=remedy))
    if refused:
        return refused[0]
    why = f"no specification of {GPU_KIND} in {' and '.join(_spec_folders(status))}"
    if status.engine.engine in PODS:
        return Access(why=f"CDI is on, with {why}, unless a DRA driver writes its own")
    return Access(cdi=False, why=why)


def specs_read(status: Status, registry: Registry) -> Iterator[tuple[SpecFile, str, str]]:
    """Yield each specification that an engine looks at: why it refuses it, and the remedy.

    Both are "" if it does not, or its release is not known.
    """
    engine, folders = status.engine, _with_links(_spec_folders(status))
    name = CDI_NAMES.get(engine.engine, engine.engine)
    for file in registry.specs:
        if os.path.dirname(file.path) in folders:
            why = engines.refusal(file.spec, name, engine.version) if engine.version else ""
            remedy = _older_remedy(file, name, engine.version) if why else ""
            yield file, f"{file.path}: {why}" if why else "", remedy


def _older_remedy(file: SpecFile, engine: str, release: str) -> str:
    """Return what lets an engine, as `nvct.cdi` names it, read a spec that is too new for it."""
    highest = engines.highest(engine, release)
    if not highest:
        return f"Use `--runtime=nvidia` with {engine} {release}, or update it."
    if file.spec["kind"].partition("/")[0].endswith("nvidia.com"):
        return (
            f"Run `nvidia-ctk cdi generate --cdi-version-max {highest} --output {file.path}`, and "
            f"put {VERSION_ENV}={highest} into {REFRESH_ENV}, for later ones."
        )
    return f"Update {engine}, or have the specification written with cdiVersion {highest}."


def _with_links(folders: tuple[str, ...]) -> set[str]:
    """Return folders under both names that /run has."""
    real = {"/run" + folder.removeprefix("/var/run") for folder in folders if "/var/run" in folder}
    linked = {"/var" + folder for folder in folders if folder.startswith("/run/")}
    return {*folders, *real, *linked}


def _hook(engine: Engine) -> str:
    """Return the program by which dockerd serves `--gpus`, "" if it is not on dockerd's PATH.

    nvidia-cdi-hook serves it too since 29.2, but only where CDI gives GPUs anyway.
    """
    folders = ":".join(DEFAULT_PATH_DIRS) if engine.path is None else engine.path
    return shutil.which(RUNTIME_HOOK_PROGRAM, path=folders or os.devnull) or ""
