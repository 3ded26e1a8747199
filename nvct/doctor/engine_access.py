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
    # whether the engine gives NVIDIA's CDI devices; None if unknown
    cdi: bool | None = None
    device: str = ""  # the qualified name of such a device, "" if none is known
    why: str = ""  # why CDI gives none, "" if it does
    # how to make a specification readable for the engine, "" if the fault is another one
    remedy: str = ""
    hook: str = ""
    is_known: bool = True

    @property
    def gives_gpus(self) -> bool:
        """Whether the engine has any way to give GPUs."""
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
    """Return the names of NVIDIA's runtimes that an engine knows."""
    handlers = state.handlers if state else {}
    return tuple(sorted(name for name, path in handlers.items() if is_nvidia(name, path)))


def _spec_folders(status: Status) -> tuple[str, ...]:
    state = status.in_force
    return tuple(state.spec_dirs) if state and state.spec_dirs else tuple(CDI_SPEC_DIRS)


def finding(engine: Engine, access: Access, *, is_needed: bool) -> Finding | None:
    """Return a finding about an engine without NVIDIA's runtimes, else None.

    If the engine `is_needed` and has no other way to give GPUs, it is a fault.
    """
    if access.runtimes:
        return None
    name = " ".join(word for word in (engine.engine, engine.version) if word)
    if not access.is_known:
        text = f"{name}: its configuration could not be read, so its runtimes are unknown"
        severity: Severity = "unknown" if is_needed else "note"
        return Finding(Reason.EngineNotConfigured, severity, text)
    severity = "note"
    if is_needed and not access.gives_gpus:
        severity = "unknown" if access.cdi is None else "warning"
    text = f"{name}: no NVIDIA runtime{_consequence(engine, access)}"
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
        return f"See what `nvct runtime status` says about {engine.platform or engine.engine}."
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
        return Access(why="it is unknown whether CDI is on")
    if not is_on:
        return Access(cdi=False, why="CDI is off")
    listed = status.running.devices if status.running else ()
    if device := _one_of(listed):
        return Access(cdi=True, device=device)
    return _by_specs(status, registry)


def _is_nvidias(kind: str) -> bool:
    """Report whether a kind is one of GPUs, a device plugin's included (k8s.gpu.nvidia.com)."""
    vendor = kind.partition("/")[0]
    return kind == GPU_KIND or (vendor.endswith(VENDOR) and not vendor.startswith("management"))


def _one_of(names: Iterable[str]) -> str:
    """Return a device of NVIDIA's, preferably the device `all`; "" for none."""
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
    """Yield each specification that an engine reads, why it refuses the file, and the remedy.

    Reason and remedy are "" if it accepts the file, or the engine's release is unknown.
    """
    engine, folders = status.engine, _with_links(_spec_folders(status))
    name = CDI_NAMES.get(engine.engine, engine.engine)
    for file in registry.specs:
        if os.path.dirname(file.path) in folders:
            why = engines.refusal(file.spec, name, engine.version) if engine.version else ""
            remedy = _older_remedy(file, name, engine.version) if why else ""
            yield file, f"{file.path}: {why}" if why else "", remedy


def _older_remedy(file: SpecFile, engine: str, release: str) -> str:
    """Return the remedy for a spec that is too new for an engine, as `nvct.cdi` names it."""
    highest = engines.highest(engine, release)
    if not highest:
        return f"Use `--runtime=nvidia` with {engine} {release}, or update it."
    if file.spec["kind"].partition("/")[0].endswith("nvidia.com"):
        return (
            f"Run `nvidia-ctk cdi generate --cdi-version-max {highest} --output {file.path}`, and "
            f"set {VERSION_ENV}={highest} in {REFRESH_ENV} for later ones."
        )
    return f"Update {engine}, or write the specification with cdiVersion {highest}."


def _with_links(folders: tuple[str, ...]) -> set[str]:
    """Return the folders by both names, /run and /var/run."""
    real = {"/run" + folder.removeprefix("/var/run") for folder in folders if "/var/run" in folder}
    linked = {"/var" + folder for folder in folders if folder.startswith("/run/")}
    return {*folders, *real, *linked}


def _hook(engine: Engine) -> str:
    """Return the program by which dockerd serves `--gpus`, "" if it is not on dockerd's PATH.

    nvidia-cdi-hook serves it, too, since 29.2, but only if CDI gives GPUs anyway.
    """
    folders = ":".join(DEFAULT_PATH_DIRS) if engine.path is None else engine.path
    return shutil.which(RUNTIME_HOOK_PROGRAM, path=folders or os.devnull) or ""
