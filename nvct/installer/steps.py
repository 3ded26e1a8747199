# SPDX-License-Identifier: Apache-2.0
"""The steps of `nvct install`, what it undoes at its end, and `nvct install --uninstall`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import TypeAlias

from nvct import paths
from nvct.cdi.make import generate, provenance, store
from nvct.cdi.types import Spec
from nvct.engine.engine_files import runtimes_in_use
from nvct.engine.journal import Journal
from nvct.engine.model import EngineOptions
from nvct.errors import HostError, NvctError, OSErrorsAs, UnsafePathError
from nvct.host import device_nodes, feature_modes
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions
from nvct.host.model import Findings, Inventory
from nvct.host.roots import Roots
from nvct.installer import engine, programs, publication, ready, settings
from nvct.installer.engine import Setup
from nvct.installer.host import HostFiles, socket_of
from nvct.installer.programs import TREES
from nvct.installer.request import LOW_LEVEL, RESTART, SOCKETS, Request
from nvct.kernel.calls import end_with_parent
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.files import split
from nvct.linux.kernel import KERNEL, Kernel
from nvct.paths import AGENT_DIR, NRI_DIR

Say: TypeAlias = Callable[[str], None]


def run(request: Request, say: Say, show: Say, *, daemon: bool) -> None:
    """Install programs and configure the engine; a daemon undoes the configuration after a signal.

    A signal during the installation has the same effect. If an NvctError ends the installation,
    the engine keeps its former files.
    """
    with Instance(request.pid_file):
        engine_setup: Setup | None = None
        try:
            configures = request.engine and not request.leave_engine
            engine_setup = engine.setup(request) if configures else None
            install(request, engine_setup, say, show)
            if engine_setup:
                engine.configure(request, engine_setup, say)
            elif request.undo_engine:
                undo_earlier(request, say)
            if request.publish:
                publication.publish(request, say)
                publication.start_watch(request, say)
            if not daemon:
                return
            if request.nri is not None:
                say("the NRI plugin runs; waiting for a signal")
                run_plugin(request.nri, request.config_toml)
            say("waiting for a signal")
            while True:
                signal.pause()  # its handler raises Stopped
        except Stopped:
            say("ending after a signal")
        if request.publish and daemon:
            publication.stop_watch(request, say)
            publication.withdraw(request, say)
        if engine_setup and daemon:
            engine.undo(request, engine_setup, say)


def undo_earlier(request: Request, say: Say) -> None:
    """Undo what earlier installations changed in files of any engine. Raises as `engine.undo`."""
    journal = Journal(request.state_dir)
    for path in journal.paths():
        page = journal.load(path)
        record = page.done or page.pending
        if record is None or not record.options.engine:
            continue
        named = of_record(request, record.options)
        engine.undo(named, engine.setup(named), say)


def of_record(request: Request, options: EngineOptions) -> Request:
    """Return a request for a record's engine; if it is not this one, with its default socket."""
    if (options.engine, options.config) == (request.engine, request.config):
        return request
    is_left = request.restart == "none" and bool(request.engine)
    return replace(
        request,
        engine=options.engine,
        config=options.config,
        drop_in=options.drop_in,
        drop_in_host="",
        executable=options.executable,
        socket=SOCKETS.get(options.engine, ""),
        restart="none" if is_left else RESTART.get(options.engine, "none"),
        restart_command=(),
        sources=(),
        hook_file="",
    )


def run_plugin(options: Sequence[str], config: str) -> None:
    """Run the NRI plugin until a signal (Stopped) or its end (HostError); it ends with nvct."""
    argv = [sys.executable, "-I", "-m", "nvct.nri.main", *options]
    env = {**os.environ, paths.CONFIG_ENV: config}
    end = partial(end_with_parent, os.getpid())
    plugin = subprocess.Popen(argv, env=env, preexec_fn=end)  # noqa: PLW1509  no threads
    try:
        status = plugin.wait()
    finally:
        plugin.terminate()
        plugin.wait()
    raise HostError(f"the NRI plugin has ended with status {status}", hint="its message is above")


def install(request: Request, engine_setup: Setup | None, say: Say, show: Say) -> None:
    """Install programs and config.toml, and nodes and specification for management containers.

    Raises NvctError.
    """
    runtimes = request.runtimes
    if not runtimes:
        runtimes = engine.find_low_level(engine_setup) if engine_setup else LOW_LEVEL

    def copy() -> None:
        is_new = programs.install(request, runtimes)
        state = "installed" if is_new else "is installed already"
        say(f"{request.toolkit}: {state}, from {request.source}")

    def configure() -> None:
        text = settings.text(request, runtimes)
        settings.write(request, text)
        show(text)

    def nodes() -> None:
        if request.control_nodes:
            for sentence in make_control_nodes(roots_of(request), KERNEL):
                say(sentence)

    def spec() -> None:
        if request.cdi_spec:
            say(f"wrote {make_spec(request, roots_of(request))}")

    for step in (copy, configure, nodes, spec):
        try:
            step()
        except NvctError as error:
            if not request.ignore_errors:
                raise
            hint = f" ({error.hint})" if error.hint else ""
            say(f"warning: ignored: {error.message}{hint}")


def make_control_nodes(roots: Roots, kernel: Kernel) -> list[str]:
    """Create or correct the driver's control nodes; say what was done. HostError if no driver."""
    findings = Findings()
    planned = device_nodes.plan_nodes(roots, ["control"], findings)
    device_nodes.make_nodes(planned, kernel)
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)
    sentences = [device_nodes.describe(step) for step in planned.steps]
    return [*findings.warnings, *(sentence for sentence in sentences if sentence)]


def roots_of(request: Request) -> Roots:
    """Return the roots of the driver as paths of this process."""
    return Roots(driver_root=request.driver_root_mount, dev_root=request.dev_root_mount or None)


def make_spec(request: Request, roots: Roots, options: DiscoveryOptions = DEFAULTS) -> str:
    """Write management containers' specification; return its path. HostError without a driver."""
    inventory = feature_modes.discover_management(roots, options)
    spec, comment = provenance.attach(spec_of(request, roots, inventory), inventory)
    return store.save(spec, request.cdi_spec, None, comment)


def spec_of(request: Request, roots: Roots, inventory: Inventory) -> Spec:
    """Return the specification of management containers, with the host's paths."""
    vendor, _, cls = request.cdi_kind.partition("/")
    options = generate.Options(
        vendor=vendor,
        cls=cls,
        hook_path=request.program(paths.HOOK_PROGRAM),
        host_roots=_moves(request, roots),
    )
    return generate.generate(inventory, options)


def _moves(request: Request, roots: Roots) -> list[tuple[str, str]]:
    """Return pairs of a root's path here and on the host, the longest path here first."""
    driver_root = os.path.normpath(roots.driver_root)
    pairs = {driver_root: request.driver_root}
    dev_root = os.path.normpath(roots.dev_root or "/")
    if dev_root != driver_root:
        pairs[dev_root] = request.dev_root or ("/" if dev_root == "/" else request.driver_root)
    moves = [(source, target) for source, target in pairs.items() if source != target]
    return sorted(moves, key=lambda pair: -len(pair[0]))


KEPT = {
    "/var/lib/nvct": "running containers may use its files",
    "/run/nvct": "a cache, which is gone after the next boot",
    NRI_DIR: "the record of who has which GPU, which is gone after the next boot",
}
"""Folder that the runtimes create on a host → why `uninstall` keeps it."""


def uninstall(request: Request, say: Say) -> None:
    """Restore the engine's files; remove programs that are not in use. Raises as `engine.undo`."""
    files = HostFiles(request.host_root if os.path.isdir(request.host_root) else "/")
    folder = files.at(os.path.dirname(request.toolkit))  # in a container, a mount point
    if not os.path.isdir(f"{request.toolkit}/{TREES}"):
        say(f"nothing is installed: {request.toolkit} has no programs of nvct")
        _remove_empty(folder)
        return
    with Instance(request.pid_file):
        publication.stop_watch(request, say)
        publication.withdraw(request, say)
        users = []
        if request.engine:
            users = users_of(request, socket_of(request))
        if request.undo_engine:
            undo_earlier(request, say)
        elif request.engine and not request.leave_engine:
            engine.undo(request, engine.setup(request), say)
        if users:
            say(f"{request.toolkit} stays: {users[0]}; remove it when no container uses it")
        else:
            try:
                shutil.rmtree(request.toolkit)
            except OSError as error:
                path = error.filename or request.toolkit
                raise HostError(f"{path}: {error.strerror}") from error
            _remove_empty(folder)
            say(f"removed {request.toolkit}")
        for path, reason in KEPT.items():
            if os.path.isdir(files.at(path)):
                say(f"{path} stays: {reason}")
    _remove_empty(files.at(os.path.dirname(request.pid_file)))
    _remove_empty(files.at(AGENT_DIR))
    _remove_ready(files)
    driver_root = files.at(request.driver_root)  # a driver container's, made by the chart's pods
    _remove_empty(driver_root)
    _remove_empty(os.path.dirname(driver_root))


def users_of(request: Request, socket: str) -> list[str]:
    """Return reasons to keep the programs: a sentence for each container that they started."""
    if request.engine != "containerd":
        return [f"{request.engine} may need its programs to end containers"]
    return [
        f"container {id_} was started by it"
        for id_, runtime in runtimes_in_use(os.path.dirname(socket))
        if runtime.startswith(f"{request.toolkit}/")
    ]


def _remove_ready(files: HostFiles) -> None:
    folder = files.at(ready.OWN_FOLDER)
    with contextlib.suppress(HostError):
        ready.remove(folder, ready.DRIVER)
    _remove_empty(folder)


def _remove_empty(folder: str) -> None:
    with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(folder)


# One installer at a time

TRIES = 3
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)


class Stopped(BaseException):
    """The installer got a signal to end."""


class Instance:
    """The lock that an installer holds on a file with its PID, so that only one runs at a time.

    Contract: the lock, not the file's content, shows that an installer runs. The file must be in a
    folder that only root can write; in the agent's folder, the agent's container could hold the
    lock. The first signal raises `Stopped`; later ones are ignored, so that they do not interrupt
    the undo.

    Raises (on entering):
        HostError: another installer runs, or the file cannot be created, for example over a link.
        UnsafePathError: the folder is a link or a file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder, self._name = split(path)
        self._fd = -1

    def __enter__(self) -> Instance:
        with OSErrorsAs(HostError, f"{self._path} cannot be made"):
            with SharedFolder.open(self._folder, create=0o755) as folder:
                # An installer that ends just now removes the file: then a new one is made.
                tries = (folder.try_lock(self._name) for _ in range(TRIES))
                self._fd = next((fd for fd in tries if fd >= 0), -1)
            if self._fd >= 0:
                os.ftruncate(self._fd, 0)
                os.write(self._fd, f"{os.getpid()}\n".encode())
        if self._fd < 0:
            raise HostError(f"another installer runs: it holds {self._path}", hint="end it first")
        for number in SIGNALS:
            signal.signal(number, _stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with (
            contextlib.suppress(OSError, UnsafePathError),
            SharedFolder.open(self._folder) as folder,
        ):
            folder.unlink(self._name)
        os.close(self._fd)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    raise Stopped
