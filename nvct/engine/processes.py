# SPDX-License-Identifier: Apache-2.0
"""Finds the command lines of engines: of running ones in /proc, else as their units would start.

Contract: only reads. A process that ends meanwhile is left out. If a process cannot be inspected,
its fields are empty (another user's command line is readable, its environment is not).

Of systemd.unit(5) and systemd.service(5), only what engines' units use is supported: drop-ins, an
empty ExecStart=, Environment=, EnvironmentFile= and $VARIABLE in arguments. `systemctl show` is
not used: it needs a running systemd, does not quote arguments and does not read EnvironmentFile=.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nvct.engine.model import Files
from nvct.host import procfs

DELETED = " (deleted)"
PROGRAMS = {"dockerd": "docker", "containerd": "containerd", "crio": "crio", "podman": "podman"}
ROOTLESS = "ROOTLESSKIT_STATE_DIR"  # rootlesskit sets it; its children have their own /etc
SCOPES = ("docker-", "libpod-", "cri-containerd-", "crio-")  # of containers
# Arguments with which these programs print something and end; podman serves only with "service".
PASSING = frozenset(
    {"config", "--validate", "--version", "-version", "-v", "--help", "-h", "publish", "wipe"}
    | {"oci-hook", "status", "version", "check", "complete"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """An engine's process: a running one, or with pid 0 the one that its unit would start."""

    engine: str
    pid: int = 0
    exe: str = ""  # its program, as a path below `root`
    replaced: bool = False  # whether that program was replaced or removed after the start
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""  # its working directory, for relative paths; "" if unknown
    unit: str = ""  # the systemd unit it runs in, "" for none
    user_unit: bool = False
    container: bool = False  # whether its control group is a container's
    uid: int = 0
    root: str = "/"  # its root directory: "/" if it is also ours, or /proc/PID/root

    def path(self, value: str) -> str:
        """Return a path of the command line as an absolute one."""
        if value == "" or value.startswith("/") or self.cwd == "":
            return value
        return posixpath.normpath(f"{self.cwd}/{value}")


def option(args: Sequence[str], *names: str) -> str:
    """Return an option's last value, "" if it is not given; see `options`."""
    return next(reversed(options(args, *names)), "")


def options(args: Sequence[str], *names: str) -> list[str]:
    """Return every value of an option.

    `names` have no dashes. Go's programs take `-name` and `--name`, "=" or the next word.
    """
    values = []
    for arg, word in zip(args, [*args[1:], ""], strict=False):
        name, equals, text = arg.lstrip("-").partition("=")
        if arg.startswith("-") and name in names:
            values.append(text if equals else word)
    return values


def running(proc: str, host: str = "/") -> Iterator[Process]:
    """Yield the running engines, sorted by PID; `host` is our own root directory."""
    engines = (inspect(pid, proc, host) for pid in procfs.processes(proc))
    return (process for process in engines if process is not None)


def inspect(pid: int, proc: str, host: str = "/") -> Process | None:
    """Return a process as an engine, None if it is not an engine or has ended."""
    folder = f"{proc}/{pid}"
    start_time = _start_time(folder)
    args = tuple(_strings(f"{folder}/cmdline"))
    if not args:
        return None  # a kernel thread, or it has ended
    link = procfs.link(f"{folder}/exe")
    exe = link.removesuffix(DELETED)
    engine = _engine(exe, args)
    if not engine:
        return None
    unit, user_unit, container = _unit(f"{folder}/cgroup")
    words = (word.partition("=") for word in _strings(f"{folder}/environ"))
    env = {name: value for name, equals, value in words if equals}
    uid = _uid(f"{folder}/status")
    is_ours = _has_our_files(f"{folder}/root", host, env)
    # The owner decides what is run as root, so a reused PID must not mix two processes.
    if uid is None or _start_time(folder) != start_time:
        return None
    return Process(
        engine=engine,
        pid=pid,
        exe=exe or (args[0] if args[0].startswith("/") else ""),
        replaced=link.endswith(DELETED),
        args=args,
        env=env,
        cwd=procfs.link(f"{folder}/cwd"),
        unit=unit,
        user_unit=user_unit,
        container=container,
        uid=uid,
        root="/" if is_ours else f"{folder}/root",
    )


def _engine(exe: str, args: tuple[str, ...]) -> str:
    """Return which engine a process is, "" for none.

    argv[0] decides first: k3s and k0s are one program under many names.
    """
    names = (posixpath.basename(args[0]), posixpath.basename(exe))
    engine = next((PROGRAMS[name] for name in names if name in PROGRAMS), "")
    arguments = frozenset(args[1:])
    if engine == "podman":
        return engine if {"system", "service"} <= arguments else ""
    return "" if arguments & PASSING else engine


def _unit(path: str) -> tuple[str, bool, bool]:
    """Return a process's unit, whether it is a user unit, and whether a container has the process.

    In /proc/PID/cgroup, "0::PATH" is cgroup v2, "N:name=systemd:PATH" systemd's hierarchy of v1.
    """
    control_group = ""
    for line in _read(path).decode(errors="replace").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "name=systemd") and group not in ("", "/"):
            control_group = group
            if controllers:
                break
    parts = control_group.split("/")
    units = [part for part in parts if part.endswith(".service")]
    user = any(part.startswith("user@") for part in parts)
    services = [unit for unit in units if not unit.startswith("user@")]
    container = any(
        part in ("docker", "kubepods", "kubepods.slice", "libpod_parent")
        or (part.endswith(".scope") and part.startswith(SCOPES))
        for part in parts
    )
    return (services[-1] if services else ""), user, container


def _uid(path: str) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def _start_time(folder: str) -> list[str]:
    """Return when a process started (field 22 of proc_pid_stat(5)), [] if it has ended."""
    return procfs.stat_fields(folder)[19:20]


def _has_our_files(root: str, host: str, env: Mapping[str, str]) -> bool:
    """Report whether a process has our file system; True if it cannot be inspected.

    Files are compared, not namespaces: a service with PrivateTmp= has another mount namespace and
    the same files.
    """
    folders = ("/", "/usr") if ROOTLESS in env else ("/", "/usr", "/etc")
    return all(_same(root + folder, host.rstrip("/") + folder) for folder in folders)


def _same(path: str, host: str) -> bool:
    try:
        return os.path.samefile(path, host)
    except OSError:
        return True


def _strings(path: str) -> list[str]:
    text = _read(path).decode(errors="surrogateescape")
    return text.rstrip("\0").split("\0") if text.rstrip("\0") else []


def _read(path: str) -> bytes:
    return procfs.read_bytes(path) or b""


# Units

# systemd.unit(5), "Unit File Load Path": a file in an earlier folder hides those in later ones.
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_VARIABLE = re.compile(r"\$(\$|\{\w+\}|\w+)")


def of_unit(engine: str, files: Files) -> Process:
    """Return the process that an engine's unit would start, with variables replaced.

    It has no arguments if there is no unit, or a masked one (a link to /dev/null).
    """
    name = f"{engine}.service"
    texts = ((f"{folder}/{name}", files.text(f"{folder}/{name}")) for folder in FOLDERS)
    path, text = next(((path, text) for path, text in texts if text is not None), ("", ""))
    if not text:
        return Process(engine=engine)
    command: list[str] = []
    env: dict[str, str] = {}
    for file in (path, *_drop_ins(name, files)):
        for key, value in _settings(files.text(file) or ""):
            if key == "ExecStart":
                command = _arguments(value)  # an empty value resets the setting
            elif key == "Environment":
                env |= dict(word.split("=", 1) for word in _arguments(value) if "=" in word)
            elif key == "EnvironmentFile":
                env |= _file_environment(value.removeprefix("-"), files)
    return Process(engine=engine, args=tuple(_expanded(command, env)), env=env, unit=name)


def _drop_ins(name: str, files: Files) -> list[str]:
    """Return a unit's drop-ins sorted by name; of several with one name, the earliest folder's."""
    by_name: dict[str, str] = {}
    for folder in reversed(FOLDERS):
        for path in files.names(f"{folder}/{name}.d", ".conf"):
            by_name[path.rpartition("/")[2]] = path
    return [by_name[key] for key in sorted(by_name)]


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of [Service]; a line that ends in a backslash is continued."""
    section = ""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", ";"))]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip().startswith("["):
            section = line.strip()
        elif section == "[Service]" and "=" in line:
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def _arguments(text: str) -> list[str]:
    """Split a command line, without the prefixes of the program (`-`, `@`, `:`, `+`, `!`)."""
    try:
        arguments = shlex.split(text)
    except ValueError:
        arguments = text.split()
    return [arguments[0].lstrip("-@:+!"), *arguments[1:]] if arguments else []


def _file_environment(path: str, files: Files) -> dict[str, str]:
    text = files.text(path) or ""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, value in pairs}


def _expanded(arguments: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield the words with variables replaced; a lone $NAME becomes several words."""

    def value(match: re.Match[str]) -> str:
        name = match[1].strip("{}")
        return "$" if name == "$" else env.get(name, "")

    for word in arguments:
        if re.fullmatch(r"\$\w+", word):
            yield from env.get(word[1:], "").split()
        else:
            yield _VARIABLE.sub(value, word)
