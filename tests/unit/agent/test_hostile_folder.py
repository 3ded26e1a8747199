# SPDX-License-Identifier: Apache-2.0
"""A container without rights changes the folders that processes with more rights use.

Each user of such a folder is run with each thing that can lie at a file's name. It may fail with a
sentence; it never waits, and changes or shows nothing elsewhere.
"""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvct.agent import leave
from nvct.agent.core.instance import FOLDER, YIELD, Instance
from nvct.agent.core.status import Status, with_yield
from nvct.agent.dra import journal as claims
from nvct.agent.health import store
from nvct.agent.kubelet import pod_resources
from nvct.agent.mig_manager import users
from nvct.agent.mps.control import Control
from nvct.agent.mps.daemons import CLAIMS, Daemon
from nvct.agent.mps.place import Place
from nvct.agent.nvml import worker
from nvct.agent.web import http
from nvct.cdi.make import store as cdi
from nvct.compile import published_spec
from nvct.doctor import decisions
from nvct.errors import NvctError
from nvct.host.recorder import Recorder
from nvct.installer import ready
from nvct.installer import steps as installer
from nvct.mig import journal as mig
from nvct.mig import pause
from tests.support.forked import run_forked

Use = Callable[[Path], object]
PRECIOUS = "precious of root\n"
LIMIT_S = 60
"""On a busy machine; what waits for something waits for ever."""
HUGE = 1 << 32
KINDS = (
    "link", "dangling", "folder link", "hard link", "fifo", "socket", "folder", "device", "huge",
    "text",
)  # fmt: skip
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}],
}


def plant(kind: str, path: Path, outside: Path) -> None:
    """Put something at a path; `outside` has the file `precious`, and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(outside / "precious")
    elif kind == "dangling":
        path.symlink_to(outside / "new")
    elif kind == "folder link":
        path.symlink_to(outside)
    elif kind == "hard link":
        path.hardlink_to(outside / "precious")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o600, os.stat("/dev/zero").st_rdev)
    elif kind == "huge":
        path.touch()
        os.truncate(path, HUGE)
    else:
        path.write_text('{"GPU-1": [[1, "\x1b[2J"]], "boot": [[[[')


def announce(folder: Path) -> None:
    with pause.announce(str(folder), {"GPU-1": ()}):
        pass


def change_mig(folder: Path) -> None:
    journal = mig.Journal(str(folder))
    with journal.lock():
        pass


def journal_mig(folder: Path) -> None:
    from nvct.mig.plan import Plan

    journal = mig.Journal(str(folder))
    journal.open(Plan(layouts={}), Plan(layouts={}))
    journal.close()


def serve(folder: Path) -> None:
    older = Instance(str(folder))

    async def run() -> None:
        await asyncio.wait_for(older.take(), 1)
        server = with_yield(Status(()), {YIELD: lambda: None})
        await server.listen_unix(older.socket)
        assert "starting" in (await http.ask(older.socket, "GET", "/status"))[1]
        await server.close()

    with contextlib.suppress(asyncio.TimeoutError):
        asyncio.run(run())
    older.release()


def ask(folder: Path) -> None:
    asyncio.run(http.ask(str(folder / "agent.sock"), "GET", "/status"))


def leave_node(folder: Path) -> None:
    (folder / "agent.lock").touch()
    leave.leave(str(folder.parents[1]), {})
    assert not [path for path in folder.iterdir() if not path.is_dir()]


def listen(folder: Path) -> None:
    worker.listen(str(folder / "nvml.sock")).close()


def keep_health(folder: Path) -> None:
    health = store.Store(str(folder))
    assert health.read() is None
    health.write({"gpus": {}})
    if not health.problem:
        assert health.read()


def services(folder: Path) -> users.HostServices:
    """Services of a host whose systemctl writes its words to `called`, beside the folder."""
    clients, program = folder.parent / "clients.yaml", folder.parent / "systemctl"
    clients.write_text("systemd-services: [dcgm.service]")
    program.write_text(f"#!/bin/sh\necho $* >> {folder.parent}/called\n")
    program.chmod(0o755)
    return users.HostServices("/nowhere", str(clients), str(folder))


def keep_claims(folder: Path) -> None:
    journal = claims.Journal(str(folder))

    async def run() -> None:
        async with journal.locked("a test") as known:
            journal.save(known)

    asyncio.run(run())
    journal.save({})


def install(folder: Path) -> None:
    with installer.Instance(str(folder / "toolkit.pid")):
        pass


USES: dict[str, tuple[str, Use]] = {
    "announce a change of MIG": (pause.FILE, announce),
    "announce with a known temporary name": (f"{pause.FILE}.{{pid}}", announce),
    "read the announcement": (pause.FILE, lambda f: pause.read(str(f))),
    "lock MIG": ("mig.lock", change_mig),
    "write MIG's journal": ("mig-journal.json", journal_mig),
    "read MIG's journal": ("mig-journal.json", lambda f: mig.Journal(str(f)).read()),
    "remove MIG's journal": ("mig-journal.json", lambda f: mig.Journal(str(f)).close()),
    "lock the node": ("agent.lock", serve),
    "serve a socket": ("agent.sock", serve),
    "serve with a known temporary name": ("agent.sock.{pid}", serve),
    "ask the agent": ("agent.sock", ask),
    "end the service": ("agent.sock", leave_node),
    "serve NVML": ("nvml.sock", listen),
    "serve NVML with a known temporary name": ("nvml.sock.{pid}", listen),
    "keep health": ("health.json", keep_health),
    "stop services": (users.STOPPED, lambda f: services(f).stop()),
    "start services": (users.STOPPED, lambda f: services(f).start()),
    "record": ("decisions.jsonl", lambda f: Recorder(str(f)).decided("t", "given", "x")),
    "read records": ("decisions.jsonl", lambda f: decisions.read_ring(str(f))),
    "keep claims": (claims.FILE, keep_claims),
    "lock claims": (claims.LOCK, keep_claims),
    "read claims": (claims.FILE, lambda f: pod_resources.claimed(str(f / claims.FILE))),
    "say where the driver is": (ready.DRIVER, lambda f: ready.write(str(f), ready.DRIVER, {"A": "b"})),
    "read where the driver is": (ready.DRIVER, lambda f: ready.read(str(f / ready.DRIVER))),
    "forget where the driver is": (ready.DRIVER, lambda f: ready.remove(str(f), ready.DRIVER)),
    "lock the installer": ("toolkit.pid", install),
    "publish": ("nvidia.yaml", lambda f: cdi.save(SPEC, str(f / "nvidia.yaml"))),  # type: ignore[arg-type]
    "judge what is published": (
        "nvidia.yaml", lambda f: published_spec.check_replaceable(str(f / "nvidia.yaml")),
    ),
}  # fmt: skip


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        monkeypatch.setenv("PATH", f"{path}/run:{path}:{os.environ['PATH']}")
        yield Path(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_nothing_elsewhere_is_changed_or_shown_and_nobody_waits(
    use: str, kind: str, root: Path
) -> None:
    outside, folder = root / "outside", root / FOLDER[1:]
    outside.mkdir()
    folder.mkdir(parents=True)
    precious = outside / "precious"
    precious.write_text(PRECIOUS)
    precious.chmod(0o640)
    before = precious.stat()
    if kind == "device" and os.geteuid():
        pytest.skip("needs root to make a device node")
    name, act = USES[use]

    def child() -> None:
        signal.alarm(LIMIT_S)
        plant(kind, folder / name.format(pid=os.getpid()), outside)
        said = ""
        try:
            said = str(act(folder))
        except (NvctError, OSError, RuntimeError) as error:
            said = str(error)
        assert PRECIOUS.strip() not in said

    assert run_forked(child) == 0
    assert os.listdir(outside) == ["precious"]
    after = precious.stat()
    assert precious.read_text() == PRECIOUS
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


FOLDER_USES = ("announce a change of MIG", "lock MIG", "write MIG's journal", "keep health",
               "stop services", "keep claims", "say where the driver is", "lock the installer",
               "serve a socket", "serve NVML")  # fmt: skip


@pytest.mark.parametrize("use", FOLDER_USES)
def test_a_folder_that_is_a_link_gets_no_file(use: str, root: Path) -> None:
    outside, folder = root / "outside", root / FOLDER[1:]
    outside.mkdir()
    folder.parent.mkdir(parents=True)
    folder.symlink_to(outside)

    def child() -> None:
        signal.alarm(LIMIT_S)
        with contextlib.suppress(NvctError, OSError):
            USES[use][1](folder)

    assert run_forked(child) == 0
    assert os.listdir(outside) == []


def test_services_that_the_admin_has_not_listed_are_not_started(root: Path) -> None:
    folder = root / "folder"
    folder.mkdir()
    stopped = '["--root=/x", "evil.service", 7, "dcgm.service"]'
    (folder / users.STOPPED).write_text(stopped)
    services(folder).start()
    assert (root / "called").read_text() == "start dcgm.service\n"
    assert list(folder.iterdir()) == []


def test_folders_without_end_of_a_pod_do_not_end_the_keeper(root: Path) -> None:
    """It would end the daemons of all other pods, too."""
    daemon = Daemon(resource=f"{CLAIMS}uid-1", uuids=())
    pipe, _ = Place(str(root)).folders(daemon.resource)
    os.makedirs(pipe)
    fd = os.open(pipe, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit()):
        os.mkdir("x", dir_fd=fd)
        below = os.open("x", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    Control(daemon, Place(str(root))).remove()
    subprocess.run(["rm", "-rf", pipe], check=True)


async def test_an_answer_without_an_end_is_refused(root: Path) -> None:
    path = str(root / "agent.sock")

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (1 << 20))
                await writer.drain()

    server = await asyncio.start_unix_server(endless, path)
    with pytest.raises(OSError, match="does not answer as an agent does"):
        await http.ask(path, "GET", "/status")
    server.close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.0 \xff\xff", b"HTTP/", b"HTTP/1.0 yes\r\n\r\n", b"\xff"]
)
async def test_an_answer_of_another_form_is_an_error(answer: bytes, root: Path) -> None:
    path = str(root / "agent.sock")

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(once, path)
    with pytest.raises(OSError, match=r"agent\.sock"):
        await http.ask(path, "GET", "/status")
    server.close()
