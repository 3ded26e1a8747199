# SPDX-License-Identifier: Apache-2.0
"""Why `docker run --gpus` fails: could not select device driver "" with capabilities: [[gpu]].

dockerd prints this if it has no driver for GPUs. It looks for one only when it starts: for
nvidia-container-runtime-hook on its PATH (all releases), since 29.2 also for nvidia-cdi-hook. So
the causes are: another daemon, or a program that is missing, was installed later or is outside of
PATH. There are seven causes that users report, and three related ones. No side effects.
"""

from __future__ import annotations

from nvct.doctor import docker_daemon
from nvct.doctor.model import Finding, Severity, count
from nvct.doctor.reasons import Reason
from nvct.engine.docker_host import WSL_DESKTOP, Client, Daemon, DockerHost
from nvct.engine.model import without_var

MESSAGE = 'could not select device driver "" with capabilities: [[gpu]]'


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


def why_docker_cannot(host: DockerHost) -> list[Finding]:
    """Return a finding for every cause; the first that is an error is to be mended first.

    If the client talks to a daemon of another host, the other causes cannot be judged.
    """
    findings = [_podman(host.client), _desktop(host.client), _other_host(host.client)]
    if the_cause(findings):
        return findings
    findings.append(_no_gpu(host))
    daemon = daemon_of(host)
    if daemon is None:
        findings.append(_no_daemon(host))
    else:
        findings += docker_daemon.findings(host, daemon)
    return [*findings, _no_driver(host)]


def the_cause(findings: list[Finding]) -> Finding | None:
    """Return the cause to mend first, None if none applies."""
    return next((finding for finding in findings if finding.severity == "error"), None)


def command_of(finding: Finding) -> str:
    """Return the command that fails because of a finding."""
    is_runtime = finding.reason is Reason.EngineNotReloaded
    return "docker run --runtime" if is_runtime else "docker run --gpus"


def daemon_of(host: DockerHost) -> Daemon | None:
    """Return the daemon that the client talks to, None if it is not visible."""
    socket = _socket(host.client.endpoint)
    near = [daemon for daemon in host.daemons if not daemon.apart]
    for daemon in near:
        if daemon.engine.socket and _socket(daemon.engine.socket) == socket:
            return daemon
    user = socket.removeprefix("/run/user/").partition("/")[0]
    uid = int(user) if socket.startswith("/run/user/") and user.isdecimal() else 0
    return next((daemon for daemon in near if daemon.engine.uid == uid), None)


def _socket(endpoint: str) -> str:
    return without_var(endpoint.removeprefix("unix://"))


def _podman(client: Client) -> Finding:
    program = client.program or "docker"
    if client.podman:
        seen = f"{program} is Podman, which does not do --gpus as Docker does"
        advice = "podman run --device nvidia.com/gpu=all, or install Docker's own client"
        return Finding(Reason.ClientIsPodman, "error", seen, advice)
    seen = f"{program} is Docker's" if client.program else "no docker is on PATH"
    return Finding(Reason.ClientIsPodman, "ok", seen)


def _desktop(client: Client) -> Finding:
    seen = f"docker talks to {client.endpoint or 'an unknown place'} {client.source}"
    advice = ""
    if client.program.startswith(WSL_DESKTOP):
        seen = f"{client.program} is the client of Docker Desktop on Windows"
        advice = "update Docker Desktop, WSL (wsl --update) and the driver on Windows"
    elif "/.docker/desktop/" in client.endpoint:
        seen += ": Docker Desktop's virtual machine, which has no GPU"
        advice = "docker context use default, with Docker Engine on this host"
    return Finding(Reason.ClientUsesDesktop, "error" if advice else "ok", seen, advice)


def _other_host(client: Client) -> Finding:
    there = bool(client.endpoint) and not client.endpoint.startswith("unix://")
    seen = f"docker talks to {client.endpoint or 'an unknown place'} {client.source}"
    advice = "run nvct runtime explain on that host" if there else ""
    severity: Severity = "unknown" if not client.endpoint else "error" if there else "ok"
    return Finding(Reason.ClientUsesOtherHost, severity, seen, advice)


def _no_gpu(host: DockerHost) -> Finding:
    if host.gpus:
        return Finding(Reason.GpuNotFound, "ok", f"{count(host.gpus, 'GPU')} of NVIDIA")
    seen = "this host has no GPU of NVIDIA: none on the PCI bus, none in /proc/driver/nvidia"
    advice = "leave --gpus out, or give this machine a GPU"
    return Finding(Reason.GpuNotFound, "error", seen, advice)


def _no_driver(host: DockerHost) -> Finding:
    if host.driver:
        return Finding(Reason.DriverNotLoaded, "ok", f"NVIDIA's driver is loaded: {host.driver}")
    seen = "NVIDIA's kernel module is not loaded"
    if host.elsewhere:
        seen += f"; {host.elsewhere} has the GPU"
    # Docker prints another message for this reason: the container's own start fails.
    severity: Severity = "error" if host.gpus else "note"
    advice = "install the driver and load it: modprobe nvidia"
    return Finding(Reason.DriverNotLoaded, severity, seen, advice)


def _no_daemon(host: DockerHost) -> Finding:
    seen = f"no dockerd that serves {host.client.endpoint} is seen"
    advice = "systemctl start docker; as another user than root, others' daemons are not seen"
    if host.hidden:
        return Finding(Reason.EngineNotRunning, "unknown", f"{seen}: {host.hidden}", advice)
    return Finding(Reason.EngineNotRunning, "error", seen, advice)
