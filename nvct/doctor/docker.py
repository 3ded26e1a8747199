# SPDX-License-Identifier: Apache-2.0
"""Why `docker run --gpus` fails: could not select device driver "" with capabilities: [[gpu]].

dockerd prints this if it has no driver for GPUs. It looks for one only when it starts: for
nvidia-container-runtime-hook on its PATH (all releases), since 29.2 also for nvidia-cdi-hook. So
docker talks to another daemon, or a program is missing, was installed later or is outside of PATH.
There are seven causes that users report, and three related ones. No side effects.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvct.doctor import engine_access
from nvct.doctor.engine_access import Access
from nvct.doctor.model import Finding, Part, Severity, count, date
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine import docker_host, running
from nvct.engine.docker import GPUS_BY_CDI, cdi_is_on
from nvct.engine.docker_host import HOOKS, KIND, WSL_DESKTOP, Client, Daemon, DockerHost, Program
from nvct.engine.model import Files, without_var
from nvct.engine.status import is_nvidia
from nvct.host.procfs import CLOCK_TICK_S

CAUSES = {
    Reason.ClientIsPodman: "podman",
    Reason.ClientUsesDesktop: "desktop",
    Reason.ClientUsesOtherHost: "other-host",
    Reason.GpuNotFound: "no-gpu",
    Reason.EngineNotRunning: "no-daemon",
    Reason.HookNotInstalled: "not-installed",
    Reason.SnapWithoutHook: "snap",
    Reason.RootlessWithoutHook: "rootless",
    Reason.HookNotOnPath: "not-on-path",
    Reason.EngineNotRestarted: "not-restarted",
    Reason.EngineCdiDisabled: "cdi",
    Reason.SpecificationMissing: "cdi",
    Reason.EngineNotReloaded: "not-reloaded",
    Reason.EngineNotConfigured: "not-registered",
    Reason.DriverNotLoaded: "no-driver",
}
"""The reasons, by the names that `nvct runtime explain` prints."""


OF_RUNTIMES = ("does not know", "as the default runtime")
"""Words in `nvct.engine.running.differences` about runtimes; its other texts are about CDI."""


def why_docker_cannot(host: DockerHost) -> list[Finding]:
    """Return a finding for every cause that can be checked; the first error is mended first."""
    findings = list(_of_client(host.client))
    if the_cause(findings):
        return findings
    daemon = daemon_of(host)
    causes = of_daemon(host, daemon) if daemon else [_no_daemon(host)]
    return [*findings, _no_gpu(host), *causes, _no_driver(host)]


def check(node: Node) -> Part:
    """Check that `docker run --gpus` works."""
    if not any(engine.engine == "docker" and not engine.foreign for engine in node.engines):
        return Part.absent("no dockerd runs here")
    host = docker_host.look(Files(), node.roots, node.env)
    found = [one for one in why_docker_cannot(host) if one.severity != "ok"]
    cause = the_cause(found)
    if cause is None:
        if hidden := [one for one in found if one.reason is Reason.EngineNotRunning]:
            return Part.absent(hidden[0])
        unknown = any(finding.severity == "unknown" for finding in found)
        seen = ", but not all could be checked" if unknown else ""
        return Part.of(f"docker run --gpus: no cause of a failure found{seen}", findings=found)
    if cause.reason is Reason.GpuNotFound:  # the check `gpus` reports that
        return Part.absent(cause.evidence)
    return Part.of(f"{command_of(cause)} fails: {cause.evidence}", findings=[cause])


def the_cause(findings: list[Finding]) -> Finding | None:
    """Return the cause to mend first, None if none applies."""
    return next((finding for finding in findings if finding.severity == "error"), None)


def command_of(finding: Finding) -> str:
    """Return the command that fails because of a finding."""
    if finding.reason is not Reason.EngineNotReloaded:
        return "docker run --gpus"
    is_runtime = any(words in finding.evidence for words in OF_RUNTIMES)
    return "docker run --runtime" if is_runtime else "docker run --device"


def daemon_of(host: DockerHost) -> Daemon | None:
    """Return the daemon that the client talks to, None if it is not visible."""

    def path(endpoint: str) -> str:
        return without_var(endpoint.removeprefix("unix://"))

    socket = path(host.client.endpoint)
    near = [daemon for daemon in host.daemons if not daemon.apart]
    for daemon in near:
        if daemon.engine.socket and path(daemon.engine.socket) == socket:
            return daemon
    user = socket.removeprefix("/run/user/").partition("/")[0]
    uid = int(user) if socket.startswith("/run/user/") and user.isdecimal() else 0
    return next((daemon for daemon in near if daemon.engine.uid == uid), None)


def _of_client(client: Client) -> Iterator[Finding]:
    program, advice = client.program or "docker", ""
    seen = f"{program} is Docker's" if client.program else "no docker is on PATH"
    if client.podman:
        seen = f"{program} is Podman, whose --gpus is not Docker's"
        advice = "podman run --device nvidia.com/gpu=all, or install Docker's own client"
    yield Finding(Reason.ClientIsPodman, "error" if advice else "ok", seen, advice)
    talks, advice = f"docker talks to {client.endpoint or 'an unknown place'} {client.source}", ""
    seen = talks
    if client.program.startswith(WSL_DESKTOP):
        seen = f"{client.program} is the client of Docker Desktop on Windows"
        advice = "update Docker Desktop, WSL (wsl --update) and the driver on Windows"
    elif "/.docker/desktop/" in client.endpoint:
        seen += ": Docker Desktop's virtual machine, which has no GPU"
        advice = "docker context use default, with Docker Engine on this host"
    yield Finding(Reason.ClientUsesDesktop, "error" if advice else "ok", seen, advice)
    there = bool(client.endpoint) and not client.endpoint.startswith("unix://")
    severity: Severity = "unknown" if not client.endpoint else "error" if there else "ok"
    advice = "run nvct runtime explain on that host" if there else ""
    yield Finding(Reason.ClientUsesOtherHost, severity, talks, advice)


def _no_gpu(host: DockerHost) -> Finding:
    if host.gpus:
        return Finding(Reason.GpuNotFound, "ok", count(host.gpus, "NVIDIA GPU"))
    seen = "this host has no NVIDIA GPU: none on the PCI bus, none in /proc/driver/nvidia"
    advice = "leave --gpus out, or give this machine a GPU"
    return Finding(Reason.GpuNotFound, "error", seen, advice)


def _no_driver(host: DockerHost) -> Finding:
    if host.driver:
        return Finding(Reason.DriverNotLoaded, "ok", f"NVIDIA's driver is loaded: {host.driver}")
    seen = "NVIDIA's kernel module is not loaded"
    if host.elsewhere:
        seen += f"; {host.elsewhere} has the GPU"
    # Docker prints another message in this case: the start of the container fails.
    severity: Severity = "error" if host.gpus else "note"
    advice = "install the driver and load it: modprobe nvidia"
    return Finding(Reason.DriverNotLoaded, severity, seen, advice)


def _no_daemon(host: DockerHost) -> Finding:
    seen = f"no dockerd found that serves {host.client.endpoint}"
    advice = "systemctl start docker; only root sees the daemons of all users"
    seen += f": {host.hidden}" if host.hidden else ""
    return Finding(Reason.EngineNotRunning, "unknown" if host.hidden else "error", seen, advice)


RUNTIME_HOOK, CDI_HOOK = HOOKS
ASKS_AMD = (29, 3)
"""Since this version, dockerd with CDI on looks for AMD GPUs if it finds no NVIDIA hook."""
SNAP_ADVICE = (
    "snap remove docker, and install docker-ce or docker.io; the snap's own toolkit "
    "serves --runtime=nvidia"
)
INSTALL = "install nvct or nvidia-container-toolkit, then run: "


def of_daemon(host: DockerHost, daemon: Daemon) -> list[Finding]:
    """Return a finding for every cause in the daemon and its programs."""
    return [
        _not_installed(host, daemon),
        _snap(daemon),
        _rootless(host, daemon),
        _not_on_path(host, daemon),
        _not_restarted(daemon),
        _cdi(daemon),
        _not_reloaded(daemon),
        _not_registered(daemon),
    ]


def _needed(daemon: Daemon) -> tuple[str, ...]:
    """Return the programs for `--gpus`; one of them is enough."""
    numbers = daemon.engine.numbers
    return HOOKS if numbers and numbers >= GPUS_BY_CDI else (RUNTIME_HOOK,)


def _found(daemon: Daemon) -> Program | None:
    """Return the needed program on the daemon's PATH that was installed first, or None."""
    programs = [daemon.programs[name] for name in _needed(daemon) if name in daemon.programs]
    return min(programs, key=lambda program: program.arrived, default=None)


def _elsewhere(host: DockerHost, daemon: Daemon) -> Program | None:
    return next((host.programs[name] for name in _needed(daemon) if name in host.programs), None)


def _restart(daemon: Daemon) -> str:
    engine = daemon.engine
    if engine.restart:
        return " ".join(engine.restart)
    if _is_snap(daemon):
        return "snap restart docker"
    if not engine.unit and not _is_rootless(daemon):
        return f"end dockerd (process {engine.pid}) and start it again"
    user = "--user " if engine.user_unit or _is_rootless(daemon) else ""
    return f"systemctl {user}restart {engine.unit.removesuffix('.service') or 'docker'}"


def _not_installed(host: DockerHost, daemon: Daemon) -> Finding:
    found = _found(daemon) or _elsewhere(host, daemon)
    if found:
        return Finding(Reason.HookNotInstalled, "ok", f"{found.path} exists")
    seen = f"this host has no {' or '.join(_needed(daemon))}"
    if daemon.engine.numbers >= ASKS_AMD:
        seen += "; dockerd then asks for AMD's: no known GPU vendor found"
    if CDI_HOOK in host.programs:
        # The package nvidia-container-toolkit-base has the CDI hook alone.
        seen = f"the toolkit is incomplete: {host.programs[CDI_HOOK].path}, but no {RUNTIME_HOOK}"
    return Finding(Reason.HookNotInstalled, "error", seen, INSTALL + _restart(daemon))


def _is_snap(daemon: Daemon) -> bool:
    return daemon.engine.binary.startswith("/snap/") or "snap" in daemon.engine.platform


def _is_rootless(daemon: Daemon) -> bool:
    return daemon.engine.uid != 0 or "rootless" in daemon.engine.platform


def _snap(daemon: Daemon) -> Finding:
    reason = Reason.SnapWithoutHook
    if not _is_snap(daemon):
        return Finding(reason, "ok", f"dockerd is {daemon.engine.binary}, not a snap's")
    if found := _found(daemon):
        return Finding(reason, "ok", f"dockerd is from a snap and finds {found.path}")
    seen = f"dockerd is from a snap: it does not see the host's {' or '.join(_needed(daemon))}"
    return Finding(reason, _judged(daemon), seen, SNAP_ADVICE)


def _rootless(host: DockerHost, daemon: Daemon) -> Finding:
    if not _is_rootless(daemon):
        return Finding(Reason.RootlessWithoutHook, "ok", "dockerd runs as root")
    seen = f"dockerd is rootless (uid {daemon.engine.uid}) and reads {daemon.engine.config}"
    severity: Severity = "ok"
    late = _is_late(daemon)
    registered = daemon.state.handlers if daemon.state else {}
    missing = [name for name in host.system_runtimes if name not in registered]
    if late or _found(daemon) is None:
        why = "was installed after its start" if late else "is not on its PATH"
        severity, seen = _judged(daemon), f"{seen}; {' or '.join(_needed(daemon))} {why}"
    elif missing:
        # --gpus works; --runtime does not.
        severity, seen = "note", f"{seen}, not /etc/docker/daemon.json with {', '.join(missing)}"
    advice = f"as that user: nvct runtime configure --config {daemon.engine.config}, then "
    return Finding(Reason.RootlessWithoutHook, severity, seen, advice + _restart(daemon))


def _judged(daemon: Daemon) -> Severity:
    """Return "error" if the daemon's PATH is known, so that a program not found is missing."""
    return "unknown" if daemon.engine.path is None else "error"


def _not_on_path(host: DockerHost, daemon: Daemon) -> Finding:
    reason = Reason.HookNotOnPath
    if daemon.engine.path is None:
        seen = f"this user may not read the environment of dockerd (process {daemon.engine.pid})"
        return Finding(reason, "unknown", seen, "run this as root")
    if found := _found(daemon):
        return Finding(reason, "ok", f"{found.path} is on dockerd's PATH")
    advice = f"link it into /usr/bin, or set PATH in the unit, then {_restart(daemon)}"
    if other := _elsewhere(host, daemon):
        seen = f"{other.path} is not on dockerd's PATH, which is {daemon.engine.path or 'empty'}"
        return Finding(reason, "error", seen, advice)
    seen = f"dockerd (process {daemon.engine.pid}) has PATH={daemon.engine.path or '(nothing)'}"
    return Finding(reason, "ok", seen, advice)


def _is_late(daemon: Daemon) -> bool:
    found = _found(daemon)
    if found is None or daemon.started is None:
        return False
    return found.arrived > daemon.started + CLOCK_TICK_S and not _knew_the_runtime(daemon)


def _knew_the_runtime(daemon: Daemon) -> bool:
    """Report whether dockerd started with NVIDIA's runtime, so that a newer hook replaces another.

    dockerd keeps the hook's path, so it works after an upgrade, and after a move from NVIDIA's
    packages to nvct's, even if that changed dockerd's file.
    """
    if daemon.state is None or daemon.started is None or daemon.configured is None:
        return False
    if daemon.configured >= daemon.started:
        return any(is_nvidia("", path) for path in daemon.former)
    return bool(engine_access.nvidia_handlers(daemon.state))


def _not_restarted(daemon: Daemon) -> Finding:
    reason, found = Reason.EngineNotRestarted, _found(daemon)
    if found is None:
        return Finding(reason, "ok", "no hook program is found")
    if daemon.started is None:
        return Finding(reason, "unknown", "the time of dockerd's start is unknown")
    start = f"dockerd (process {daemon.engine.pid}) started {date(daemon.started)}"
    if not _is_late(daemon):
        return Finding(reason, "ok", f"{start}, {found.path} is older")
    came = f"{found.path} was installed or replaced {date(found.arrived)}"
    seen = f"{start}, {came}; dockerd looks for it only when it starts"
    return Finding(reason, "error", seen, _restart(daemon))


def _cdi(daemon: Daemon) -> Finding:
    """Check CDI, a fault of which is an error only if nvidia-cdi-hook alone could serve --gpus."""
    on = _cdi_is_on(daemon)
    if daemon.problem or on is None:
        seen = daemon.problem or "dockerd's release is unknown"
        return Finding(Reason.EngineCdiDisabled, "unknown", seen)
    if on and daemon.specs:
        seen = f"CDI is on, with {', '.join(daemon.specs)}"
        return Finding(Reason.EngineCdiDisabled, "ok", seen)
    if on:
        reason = Reason.SpecificationMissing
        seen = f"there is no CDI spec for {KIND} in {', '.join(daemon.spec_dirs)}"
        advice = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
    else:
        reason = Reason.EngineCdiDisabled
        seen = f"dockerd {daemon.engine.version} has CDI off"
        is_set = daemon.state and daemon.state.cdi
        configure = "" if is_set else "nvct runtime configure --enable-cdi, then "
        advice = configure + _restart(daemon)
    alone = CDI_HOOK in daemon.programs and RUNTIME_HOOK not in daemon.programs
    if daemon.engine.numbers >= GPUS_BY_CDI and alone:
        return Finding(reason, "error", f"{seen}, but {CDI_HOOK} serves --gpus by CDI", advice)
    return Finding(reason, "note", f"{seen}: --device {KIND}=0 needs it, --gpus does not", advice)


def _cdi_is_on(daemon: Daemon) -> bool | None:
    """Report whether CDI is on, by the daemon's own report, else by its file and release."""
    said = daemon.state.cdi if daemon.state else None
    reported = daemon.running.state.cdi if daemon.running and daemon.running.state else None
    return cdi_is_on(daemon.engine.numbers, said=said) if reported is None else reported


def _not_reloaded(daemon: Daemon) -> Finding:
    told, state = daemon.running, daemon.state
    if told is None or told.state is None or state is None:
        why = (told and told.problem) or daemon.problem or "dockerd was not asked"
        return Finding(Reason.EngineNotReloaded, "unknown", why)
    ours = engine_access.nvidia_handlers(state)
    said = running.differences(daemon.engine, state, told, ours)
    if not said:
        seen = f"dockerd runs with the settings of {daemon.engine.config}"
        return Finding(Reason.EngineNotReloaded, "ok", seen)
    only_runtimes = len(said) == 1 and not set(ours) <= set(told.state.handlers)
    advice = f"kill -HUP {daemon.engine.pid}" if only_runtimes else _restart(daemon)
    return Finding(Reason.EngineNotReloaded, "error", "; ".join(said), advice)


def _not_registered(daemon: Daemon) -> Finding:
    """Check `--runtime=nvidia`, of which `--gpus` is independent."""
    hook, reported = daemon.programs.get(RUNTIME_HOOK), daemon.running and daemon.running.state
    access = Access(
        runtimes=engine_access.nvidia_handlers(reported or daemon.state),
        cdi=_cdi_is_on(daemon) and bool(daemon.specs),
        device=f"{KIND}=all",
        why=f"CDI is off, or there is no specification of {KIND}",
        hook=hook.path if hook else "",
        is_known=bool(reported or daemon.state),
    )
    if finding := engine_access.finding(daemon.engine, access, is_needed=False):
        return finding
    return Finding(Reason.EngineNotConfigured, "ok", f"dockerd knows {', '.join(access.runtimes)}")
