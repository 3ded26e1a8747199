# SPDX-License-Identifier: Apache-2.0
"""The request of `nvct install`. Names and defaults are those of NVIDIA's installer."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from nvct.cdi.names import check_kind
from nvct.engine.containerd import RUNC_TYPES
from nvct.engine.containerd_load import RUNC_TYPE
from nvct.engine.modules import check_absolute, check_name
from nvct.errors import NvctError, UsageError

ENGINES = ("containerd", "crio", "docker")
RESTART_MODES = ("signal", "systemd", "none")
RESTART = {"containerd": "signal", "docker": "signal", "crio": "systemd"}
SOCKETS = {
    "containerd": "/run/containerd/containerd.sock",
    "crio": "/var/run/crio/crio.sock",
    "docker": "/var/run/docker.sock",
}
PID_NAME = "toolkit.pid"
LOW_LEVEL = ("runc", "crun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to install, and the engine to configure."""

    toolkit: str  # the folder for the programs; the same path here and on the host
    source: str
    pid_file: str  # locked while the installer runs
    state_dir: str
    driver_root: str  # on the host; driver_root_mount is the same folder for this process
    driver_root_mount: str
    dev_root: str = ""  # on the host, "" for the driver root's; dev_root_mount is the same here
    dev_root_mount: str = ""
    # keys of config.toml and their values, in order
    settings: tuple[tuple[str, bool | str | tuple[str, ...]], ...] = ()
    policy: str = ""  # TOML with the table nvct.policy of config.toml, "" for none
    runtimes: tuple[str, ...] = ()  # low-level ones; () are those of the engine's files
    cdi_spec: str = ""  # file for the specification of management containers, "" for none
    cdi_kind: str = ""
    control_nodes: bool = False
    engine: str = ""  # docker, containerd or crio; "" leaves all engines alone
    config: str = ""  # the engine's main file, as a path of this process
    drop_in: str | None = None  # its drop-in; "" for none, None lets the engine's module choose
    drop_in_host: str = ""  # the drop-in's path on the host, "" if it is the same
    executable: str = ""
    socket: str = ""  # the engine's, as a path of this process
    restart: str = "none"  # how it is reloaded: signal, systemd or none
    cdi: bool = False
    host_root: str = "/"
    name: str = "nvidia"
    default: bool = True
    # of the configuration in force; the first available one is used: "file" reads the engine's
    # own files, "command" asks the engine, a path reads that file; () is "file"
    sources: tuple[str, ...] = ()
    runtime_type: str = RUNC_TYPE  # of containerd's handlers if its own runtime has none
    # patterns of container annotations that containerd passes to the runtimes
    annotations: tuple[str, ...] = ()
    hook_file: str = ""  # with CRI-O, write a hook there instead of registering runtimes
    ignore_errors: bool = False
    publish: bool = False
    paths_are_of_host: bool = False  # whether the engine's files are named by their host paths
    restart_command: tuple[str, ...] = ()  # on the host, in place of `restart`
    leave_engine: bool = False  # do not edit the engine's files: its platform makes them
    undo_engine: bool = False  # undo what an earlier installation changed in the engine's files
    # options of the NRI plugin, which runs as long as the installer; None for no plugin
    nri: tuple[str, ...] | None = None

    @property
    def config_toml(self) -> str:
        """The path of the installed configuration."""
        return f"{self.toolkit}/.config/nvidia-container-runtime/config.toml"

    def program(self, name: str) -> str:
        """Return the path of an installed program."""
        return f"{self.toolkit}/{name}"

    def check(self) -> None:
        """Check the request; UsageError if a value is not valid, alone or beside another one."""
        check_absolute("--toolkit-install-dir", posixpath.dirname(self.toolkit))
        if any(c in self.toolkit for c in "'\"\\$`\n :"):
            raise UsageError(
                f"--toolkit-install-dir {self.toolkit!r} has a character that is special in PATH "
                "or in a shell",
                hint="use letters, digits, / . - and _",
            )
        if posixpath.basename(self.pid_file) != PID_NAME:
            raise UsageError(
                f"--pid-file {self.pid_file!r} is not named {PID_NAME}",
                hint="it is removed at the end, so its name is fixed",
            )
        if self.cdi_kind:
            _check_kind(self.cdi_kind)
        if self.engine:
            self._check_engine()

    def _check_engine(self) -> None:
        if self.restart not in RESTART_MODES:
            raise UsageError(
                f"unknown restart mode {self.restart!r}",
                hint=f"--restart-mode: one of {', '.join(RESTART_MODES)}",
            )
        if (self.engine, self.restart) == ("crio", "signal"):
            raise UsageError(
                "CRI-O does not read its files again on a signal", hint="--restart-mode=systemd"
            )
        for option, path in (("--config", self.config), ("--host-root", self.host_root)):
            check_absolute(option, path)
        for option, value in (
            ("--drop-in-config", self.drop_in), ("--drop-in-config-host-path", self.drop_in_host)
        ):  # fmt: skip
            if value:
                check_absolute(option, value)
        names = {posixpath.basename(path) for path in (self.drop_in, self.drop_in_host) if path}
        if len(names) > 1:
            raise UsageError(
                f"the drop-in has two names: {self.drop_in} here, {self.drop_in_host} on the host",
                hint="mount its folder, and give it one name",
            )
        check_name(self.name, "--runtime-name")
        if self.engine == "containerd" and self.runtime_type not in RUNC_TYPES:
            raise UsageError(
                f"--runtime-type {self.runtime_type!r} cannot start nvct's runtimes",
                hint=f"one of {', '.join(filter(None, RUNC_TYPES))}",
            )


def _check_kind(kind: str) -> None:
    vendor, slash, cls = kind.partition("/")
    try:
        check_kind(vendor, cls)
    except NvctError as error:
        raise UsageError(f"--cdi-kind {kind!r}: {error.message}", hint="VENDOR/CLASS") from error
    if not slash:
        raise UsageError(f"--cdi-kind {kind!r} has no class", hint="VENDOR/CLASS")
