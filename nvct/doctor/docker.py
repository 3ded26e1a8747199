# SPDX-License-Identifier: Apache-2.0
"""Why `docker run --gpus` fails: could not select device driver "" with capabilities: [[gpu]].

dockerd prints this if it has no driver for GPUs. It looks for one only when it starts: for
nvidia-container-runtime-hook on its PATH (all releases), since 29.2 also for nvidia-cdi-hook. So
the causes are: another daemon, or a program that is missing, was installed later or is outside of
PATH. There are seven causes that users report, and three related ones. No side effects.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nvct.engine.control import running
from nvct.engine.control.status import is_nvidia
from nvct.engine.docker.config import GPUS_BY_CDI, cdi_is_on
from nvct.engine.docker.host import HOOKS, KIND, WSL_DESKTOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.engine.docker.host import Client, Daemon, DockerHost, Program

RUNTIME_HOOK, CDI_HOOK = HOOKS
ASKS_AMD = (29, 3)
"""From here on dockerd, with CDI on, answers for AMD where it knows nothing of NVIDIA."""
MESSAGE = 'could not select device driver "" with capabilities: [[gpu]]'
INSTALL = "install nvct or nvidia-container-toolkit, then run: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One possible cause.

    Attributes:
        cause: its stable name.
        holds: whether it applies to this host; None if that is unknown.
        seen: the observation, one sentence.
        advice: what to do if it applies.
        command: the command that fails because of it.
    """

    cause: str
    holds: bool | None
    seen: str
    advice: str = ""
    command: str = "docker run --gpus"


def why_docker_cannot(host: DockerHost) -> list[Finding]:
    """Return every cause with a judgment; the first that applies is to be mended first.

    If the client talks to a daemon of another host, the other causes cannot be judged.
    """
    findings = [_podman(host.client), _desktop(host.client), _other_host(host.client)]
    if any(finding.holds for finding in findings):
        return findings
    findings.append(_no_gpu(host))
    daemon = daemon_of(host)
    if daemon is None:
        findings.append(_no_daemon(host))
    else:
        findings += _of_daemon(host, daemon)
    return [*findings, _no_driver(host)]


def the_cause(findings: list[Finding]) -> Finding | None:
    """Return the cause to mend first, None if none applies."""
    return next((finding for finding in findings if finding.holds), None)


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


def _of_daemon(host: DockerHost, daemon: Daemon) -> list[Finding]:
    return [
        _not_installed(host, daemon),
        _snap(daemon),
        _rootless(host, daemon),
        _not_on_path(host, daemon),
        _not_restarted(daemon),
        _cdi(daemon),
        _not_reloaded(daemon),
    ]


def _socket(endpoint: str) -> str:
    path = endpoint.removeprefix("unix://")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _podman(client: Client) -> Finding:
    program = client.program or "docker"
    if client.podman:
        return Finding(
            cause="podman",
            holds=True,
            seen=f"{program} is Podman, which does not do --gpus as Docker does",
            advice="podman run --device nvidia.com/gpu=all, or install Docker's own client",
        )
    seen = f"{program} is Docker's" if client.program else "no docker is on PATH"
    return Finding(cause="podman", holds=False, seen=seen)


def _desktop(client: Client) -> Finding:
    seen = f"docker talks to {client.endpoint or 'an unknown place'} {client.source}"
    in_vm = "/.docker/desktop/" in client.endpoint
    on_windows = client.program.startswith(WSL_DESKTOP)
    advice = ""
    if on_windows:
        seen = f"{client.program} is the client of Docker Desktop on Windows"
        advice = "update Docker Desktop, WSL (wsl --update) and the driver on Windows"
    elif in_vm:
        seen += ": Docker Desktop's virtual machine, which has no GPU"
        advice = "docker context use default, with Docker Engine on this host"
    return Finding(cause="desktop", holds=in_vm or on_windows, seen=seen, advice=advice)


def _other_host(client: Client) -> Finding:
    there = bool(client.endpoint) and not client.endpoint.startswith("unix://")
    seen = f"docker talks to {client.endpoint or 'an unknown place'} {client.source}"
    advice = "run nvct runtime explain on that host" if there else ""
    return Finding(
        cause="other-host", holds=there if client.endpoint else None, seen=seen, advice=advice
    )


def _no_gpu(host: DockerHost) -> Finding:
    if host.gpus:
        return Finding(cause="no-gpu", holds=False, seen=f"{_count(host.gpus, 'GPU')} of NVIDIA")
    return Finding(
        cause="no-gpu",
        holds=True,
        seen="this host has no GPU of NVIDIA: none on the PCI bus, none in /proc/driver/nvidia",
        advice="leave --gpus out, or give this machine a GPU",
    )


def _no_driver(host: DockerHost) -> Finding:
    if host.driver:
        seen = f"NVIDIA's driver is loaded: {host.driver}"
        return Finding(cause="no-driver", holds=False, seen=seen)
    seen = "NVIDIA's kernel module is not loaded"
    if host.elsewhere:
        seen += f"; {host.elsewhere} has the GPU"
    return Finding(
        cause="no-driver",
        # Docker's message is another then: the container's own start fails.
        holds=host.gpus > 0,
        seen=seen,
        advice="install the driver and load it: modprobe nvidia",
    )


def _no_daemon(host: DockerHost) -> Finding:
    return Finding(
        cause="no-daemon",
        holds=True,
        seen=f"no dockerd that serves {host.client.endpoint} is seen",
        advice="systemctl start docker; as another user than root, others' daemons are not seen",
    )


def _needed(daemon: Daemon) -> tuple[str, ...]:
    """Return the programs of which one is enough."""
    numbers = daemon.engine.numbers
    return HOOKS if numbers and numbers >= GPUS_BY_CDI else (RUNTIME_HOOK,)


def _names(daemon: Daemon) -> str:
    return " or ".join(_needed(daemon))


def _found(daemon: Daemon) -> Program | None:
    """Return the needed program on the daemon's PATH that was installed first, or None."""
    programs = [daemon.programs[name] for name in _needed(daemon) if name in daemon.programs]
    return min(programs, key=lambda program: program.arrived, default=None)


def _elsewhere(host: DockerHost, daemon: Daemon) -> Program | None:
    """Return the needed program that the host has in the usual places."""
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
        return Finding(cause="not-installed", holds=False, seen=f"{found.path} is there")
    seen = f"{_names(daemon)} is nowhere on this host"
    if daemon.engine.numbers >= ASKS_AMD:
        seen += "; dockerd then asks for AMD's: no known GPU vendor found"
    if CDI_HOOK in host.programs:
        # The package nvidia-container-toolkit-base has the one, nvidia-container-toolkit both.
        seen = f"half of it is installed: {host.programs[CDI_HOOK].path}, but no {RUNTIME_HOOK}"
    return Finding(cause="not-installed", holds=True, seen=seen, advice=INSTALL + _restart(daemon))


def _is_snap(daemon: Daemon) -> bool:
    return daemon.engine.binary.startswith("/snap/") or "snap" in daemon.engine.platform


def _is_rootless(daemon: Daemon) -> bool:
    return daemon.engine.uid != 0 or "rootless" in daemon.engine.platform


def _snap(daemon: Daemon) -> Finding:
    if not _is_snap(daemon):
        seen = f"dockerd is {daemon.engine.binary}, no snap's"
        return Finding(cause="snap", holds=False, seen=seen)
    found = _found(daemon)
    if found:
        seen = f"dockerd is a snap's and finds {found.path}"
        return Finding(cause="snap", holds=False, seen=seen)
    return Finding(
        cause="snap",
        holds=_judged(daemon),
        seen=f"dockerd is a snap's: it does not see the host's {_names(daemon)}",
        advice="snap remove docker, and install docker-ce or docker.io; the snap's own toolkit "
        "serves --runtime=nvidia",
    )


def _rootless(host: DockerHost, daemon: Daemon) -> Finding:
    """Judge a user's own daemon: it has that user's PATH and configuration."""
    if not _is_rootless(daemon):
        return Finding(cause="rootless", holds=False, seen="dockerd is root's")
    seen = f"dockerd is rootless (uid {daemon.engine.uid}) and reads {daemon.engine.config}"
    late = _is_late(daemon)
    registered = daemon.state.handlers if daemon.state else {}
    missing = [name for name in host.system_runtimes if name not in registered]
    if late or _found(daemon) is None:
        why = "came after its start" if late else "is not on its PATH"
        holds, seen = _judged(daemon), f"{seen}; {_names(daemon)} {why}"
    elif missing:
        # --gpus works; --runtime does not.
        holds, seen = False, f"{seen}, not /etc/docker/daemon.json with {', '.join(missing)}"
    else:
        holds = False
    return Finding(
        cause="rootless",
        holds=holds,
        seen=seen,
        advice=f"as that user: nvct runtime configure --config {daemon.engine.config}, then "
        f"{_restart(daemon)}",
    )


def _judged(daemon: Daemon) -> bool | None:
    """Return True if the daemon's PATH is known: a program that is not found is missing."""
    return None if daemon.path is None else True


def _not_on_path(host: DockerHost, daemon: Daemon) -> Finding:
    found, other = _found(daemon), _elsewhere(host, daemon)
    if found and daemon.path is not None:
        return Finding(cause="not-on-path", holds=False, seen=f"{found.path} is on dockerd's PATH")
    if daemon.path is None:
        return Finding(
            cause="not-on-path",
            holds=None,
            seen=f"the environment of dockerd (process {daemon.engine.pid}) may not be read",
            advice="run this as root",
        )
    seen = f"dockerd (process {daemon.engine.pid}) has PATH={daemon.path or '(nothing)'}"
    if other:
        seen = f"{other.path} is not on dockerd's PATH, which is {daemon.path or 'empty'}"
    return Finding(
        cause="not-on-path",
        holds=other is not None,
        seen=seen,
        advice=f"link it into /usr/bin, or set PATH in the unit, then {_restart(daemon)}",
    )


def _is_late(daemon: Daemon) -> bool:
    found = _found(daemon)
    return bool(found and daemon.started is not None and found.arrived > daemon.started)


def _not_restarted(daemon: Daemon) -> Finding:
    found = _found(daemon)
    if found is None or daemon.started is None:
        seen = "no program is found that could have come later"
        if found:
            seen = "when dockerd started cannot be told"
        return Finding(cause="not-restarted", holds=None if found else False, seen=seen)
    start = f"dockerd (process {daemon.engine.pid}) started {_time(daemon.started)}"
    if not _is_late(daemon):
        seen = f"{start}, {found.path} was there before"
        return Finding(cause="not-restarted", holds=False, seen=seen)
    return Finding(
        cause="not-restarted",
        holds=True,
        seen=f"{start}, {found.path} came or was replaced {_time(found.arrived)}; dockerd looks "
        "for it at its start only",
        advice=_restart(daemon),
    )


def _cdi(daemon: Daemon) -> Finding:
    """Judge CDI: it is the cause only if nothing but nvidia-cdi-hook could serve --gpus."""
    numbers = daemon.engine.numbers
    said = daemon.state.cdi if daemon.state else None
    told = daemon.running.state.cdi if daemon.running and daemon.running.state else None
    on = cdi_is_on(numbers, said=said) if told is None else told
    if daemon.problem or on is None:
        seen = daemon.problem or "which release dockerd is cannot be told"
        return Finding(cause="cdi", holds=None, seen=seen)
    if on and daemon.specs:
        seen = f"CDI is on, with {', '.join(daemon.specs)}"
        return Finding(cause="cdi", holds=False, seen=seen)
    if on:
        seen = f"no CDI spec for {KIND} is in {', '.join(daemon.spec_dirs)}"
        advice = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
    else:
        seen = f"dockerd {daemon.engine.version} has CDI off"
        configure = "" if said else "nvct runtime configure --enable-cdi, then "
        advice = configure + _restart(daemon)
    alone = CDI_HOOK in daemon.programs and RUNTIME_HOOK not in daemon.programs
    holds = numbers >= GPUS_BY_CDI and alone
    seen += (
        f", and {CDI_HOOK} alone serves --gpus"
        if holds
        else f": --device {KIND}=0 needs it, --gpus does not"
    )
    return Finding(cause="cdi", holds=holds, seen=seen, advice=advice)


def _not_reloaded(daemon: Daemon) -> Finding:
    """Compare the daemon's own report with its file."""
    told, state = daemon.running, daemon.state
    command = "docker run --runtime"
    if told is None or told.state is None or state is None:
        why = (told and told.problem) or daemon.problem or "dockerd is not asked"
        return Finding(cause="not-reloaded", holds=None, seen=why, command=command)
    ours = [name for name, path in state.handlers.items() if is_nvidia(name, path)]
    said = running.differences(daemon.engine, state, told, ours)
    if not said:
        seen = f"dockerd has in force what {daemon.engine.config} says"
        return Finding(cause="not-reloaded", holds=False, seen=seen, command=command)
    only_runtimes = len(said) == 1 and not set(ours) <= set(told.state.handlers)
    advice = f"kill -HUP {daemon.engine.pid}" if only_runtimes else _restart(daemon)
    return Finding(
        cause="not-reloaded", holds=True, seen="; ".join(said), advice=advice, command=command
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
