# SPDX-License-Identifier: Apache-2.0
"""The program `nvct-nri`: connects to an engine as an NRI plugin, and reconnects.

It needs only the engine's socket, which allows everything on this host. So after its start it
holds no capability and can gain none. It never calls NVML.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

from nvct.config import load
from nvct.config.model import Config, path_from
from nvct.container.plan import fingerprints
from nvct.container.request.kubelet_record import FOLDER
from nvct.container.settings import default_for
from nvct.errors import HostError, NvctError, UsageError, line, printable, shortened
from nvct.kernel.calls import give_up_capabilities
from nvct.nri.plugin import KUBELET, Options, Plugin
from nvct.nri.ttrpc import TEXT_LIMIT, Connection
from nvct.paths import NRI_DIR
from nvct.version import __version__

NAME, PROGRAM = "nvct", "nvct-nri"
SOCKET = "/var/run/nri/nri.sock"
SOCKET_FD_ENV, INDEX_ENV, NAME_ENV = "NRI_PLUGIN_SOCKET", "NRI_PLUGIN_IDX", "NRI_PLUGIN_NAME"
"""Set by an engine that starts the plugin itself, from its folder of plugins (nri/pkg/api)."""
EXEMPT_ENV = "NRI_EXEMPT_NAMESPACES"
RULES_HELP = """What happens to a pod with other devices than the kubelet gave it.

\b
off      nothing is checked
audit    the pod runs, and is logged and counted
enforce  the pod is refused; its events say why"""
AGAIN_S = 2.0
"""Seconds between two attempts to connect, as in the incumbent."""
LONGEST_S = 300.0
PRIORITY = -10
"""Niceness, if the plugin may set it: 100 pods that start leave no CPU."""
LOST = (
    "the engine ended the connection while it listed its containers (failure {} in a row): if it"
    " has stopped itself, its log says why; containerd stops if a pod's variables are too large"
    " for a message"
)


def say(text: str) -> None:
    """Write a line to the log; a pod may have written the text, or have filled the log's disk."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{now} {shortened(printable(text), TEXT_LIMIT)}\n")
        sys.stderr.flush()


class Settings:
    """config.toml, read again when it has changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fact: fingerprints.Fingerprint | None = None
        self._config: tuple[Config, NvctError | None] = Config(), None
        self._is_valid = False

    def __call__(self) -> tuple[Config, NvctError | None]:
        """Return the last valid configuration; before there is one, the defaults and the error."""
        fact = fingerprints.take_file(self._path, time.time_ns())
        if fact == self._fact:
            return self._config
        self._fact = fact
        try:
            self._config, self._is_valid = (load.load(self._path), None), True
        except NvctError as error:
            say(f"{error}: the former rules stay in force" if self._is_valid else f"{error}")
            if not self._is_valid:
                self._config = default_for(self._path), error
        return self._config


def serve(connect: Callable[[], socket.socket], plugin: Plugin, index: str, name: str) -> None:
    """Serve one connection until the engine closes it.

    Raises:
        NvctError: the engine refuses the plugin, or does not speak the protocol.
    """
    plugin.prepare()
    with connect() as sock:
        connection = Connection(sock, plugin.methods, plugin.answered)
        try:
            connection.register(name, index)
            connection.serve()
        finally:
            plugin.lost()


def connect_to(path: str) -> socket.socket:
    """Connect to an engine's socket for plugins; HostError if that is not possible."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        is_closed = isinstance(error, PermissionError)
        on = "is NRI enabled in the engine's configuration?"
        hint = "run nvct-nri as root" if is_closed else on
        why = error.strerror or error
        raise HostError(f"no engine answers at {path}: {why}", hint=hint) from error
    return sock


def _words(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--nri-socket", envvar="NRI_SOCKET", default=SOCKET, show_default=True,
              help="The engine's socket for plugins.")  # fmt: skip
@click.option("--nri-plugin-index", envvar="NRI_PLUGIN_INDEX", default=10, show_default=True,
              type=click.IntRange(0, 99), help="The place among the plugins.")  # fmt: skip
@click.option("--nri-namespace", "namespace", envvar="NRI_NAMESPACE", default="",
              help="nvct's own namespace: its pods may have management devices.")  # fmt: skip
@click.option("--nri-management-cdi-device-namespaces", "management", multiple=True,
              envvar="NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES", callback=_words,
              help="More namespaces whose pods may; separated by commas.")  # fmt: skip
@click.option("--nri-env", "takes_variable", envvar="NRI_ENV", is_flag=True,
              help="A pod may ask by NVIDIA_VISIBLE_DEVICES; an image may, too.")  # fmt: skip
@click.option("--given-by-kubelet", "rule", envvar="NRI_GIVEN_BY_KUBELET", default="off",
              show_default=True, type=click.Choice(["off", "audit", "enforce"]),
              help=RULES_HELP)  # fmt: skip
@click.option("--exempt-namespaces", "exempt", multiple=True, envvar=EXEMPT_ENV,
              default=["kube-system"], show_default=True, callback=_words,
              help="Namespaces without that rule; separated by commas.")  # fmt: skip
@click.option("--kubelet-dir", "kubelet", envvar="KUBELET_DIR", default=KUBELET,
              show_default=True, help="The kubelet's folder.")  # fmt: skip
@click.option("--record-dir", "record", envvar="NRI_RECORD_DIR", default=NRI_DIR,
              show_default=True,
              help="The record of who has which GPU; nvct ps reads the default.")  # fmt: skip
def program(*, nri_socket: str, nri_plugin_index: int, **more: object) -> None:
    """Give GPUs to pods by NRI, and refuse those that a pod must not have.

    A pod asks by an annotation: nvidia.cdi.k8s.io/pod, nvidia.cdi.k8s.io/container.NAME or
    nvidia.cdi.k8s.io, with names of CDI devices. [nvct.policy] of config.toml is applied to every
    container if it says engine-devices = "checked".

    Example: nvct-nri --given-by-kubelet audit
    """
    if os.environ.get(EXEMPT_ENV) == "":
        more["exempt"] = []
    sockets = os.path.dirname(os.path.abspath(nri_socket))
    options = Options(sockets=sockets, **more)  # type: ignore[arg-type]  # as declared above
    _check_kubelet(options.rule, options.kubelet)
    signal.signal(signal.SIGTERM, _end)  # PID 1 of a container has no default
    config_path = path_from(dict(os.environ))
    plugin = Plugin(Settings(config_path), config_path, options, say)
    with contextlib.suppress(OSError):  # an engine ends a plugin that takes two seconds
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    give_up_capabilities()
    gc.freeze()  # else a collection now and then takes 7 to 10 ms of an answer
    index = os.environ.get(INDEX_ENV) or f"{nri_plugin_index:02}"
    name = os.environ.get(NAME_ENV) or NAME
    if SOCKET_FD_ENV in os.environ:  # the engine has started this process, and ends with it
        fd = _socket_of_engine(os.environ[SOCKET_FD_ENV])
        serve(lambda: socket.socket(fileno=fd), plugin, index, name)
        return
    serve_always(lambda: serve(lambda: connect_to(nri_socket), plugin, index, name), plugin)


def check(options: Sequence[str]) -> None:
    """Check options and variables of the program, before an installer changes anything for it.

    Raises:
        NvctError: the program would end with this error.
    """
    try:
        values = program.make_context(PROGRAM, [*options]).params
    except click.ClickException as error:
        raise UsageError(f"{PROGRAM}: {error.format_message()}") from error
    _check_kubelet(values["rule"], values["kubelet"])


def _check_kubelet(rule: str, folder: str) -> None:
    if rule != "off" and not os.path.isdir(f"{folder}/{FOLDER}"):
        hint = "on a node of Kubernetes, name the kubelet's folder by --kubelet-dir"
        raise HostError(f"{folder}/{FOLDER} does not exist", hint=hint)


def serve_always(
    serve_once: Callable[[], None], plugin: Plugin, sleep: Callable[[float], None] = time.sleep
) -> NoReturn:
    """Serve one connection after another.

    If the engine ends connections before it has accepted the plugin, the pauses grow, because each
    attempt may stop the engine, and with it the creates of all pods.
    """
    said, losses = "", 0
    while True:
        plugin.is_configured = False
        try:
            serve_once()
            problem = "the engine closed the connection"
        except NvctError as error:
            problem = line(PROGRAM, error)
        if plugin.is_refused():
            continue
        was_known, plugin.is_known = plugin.is_known, False
        if plugin.is_configured and not was_known:
            losses += 1
            problem = LOST.format(losses)
        elif was_known:
            losses = 0
        wait_s = 0.0 if was_known else min(AGAIN_S * 2 ** min(losses, 10), LONGEST_S)
        if problem != said or was_known:
            again = f"{'in' if losses else 'every'} {wait_s:.0f} s" if wait_s else "at once"
            plugin.say(f"{problem}: no rule applies until it is connected; it tries again {again}")
        said = problem
        if wait_s:
            sleep(wait_s)


def _end(*_: object) -> NoReturn:
    say("received SIGTERM: the plugin ends")
    sys.exit(0)


def _socket_of_engine(text: str) -> int:
    with contextlib.suppress(ValueError, OSError, OverflowError):
        if stat.S_ISSOCK(os.fstat(int(text)).st_mode):
            return int(text)
    raise UsageError(f"{SOCKET_FD_ENV}={text!r} is not a socket", hint="only engines set it")


def main() -> NoReturn:
    """Run the program."""
    problem: NvctError
    try:
        program(standalone_mode=False, prog_name=PROGRAM)
        sys.exit(0)
    except click.ClickException as error:
        message = error.format_message().rstrip(".?")
        problem, status = UsageError(message, hint=f"{PROGRAM} --help shows the options"), 2
    except NvctError as error:
        problem, status = error, 1
    sys.stderr.write(f"{line(PROGRAM, problem)}\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
