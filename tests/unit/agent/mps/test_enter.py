# SPDX-License-Identifier: Apache-2.0
"""A program where MPS runs: its /dev/shm is that of the clients, in a mount namespace of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.mps import place, shm
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.place import Place
from nvct.errors import HostError
from tests.support.processes import captured

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
RESOURCE = "nvidia.com/gpu"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as name:
        (Path(name) / "shm").mkdir()
        yield Path(name)


def run(where: Place, *command: str, **of_claim: str) -> subprocess.CompletedProcess[str]:
    words = where.command(*command, **of_claim)
    return able(captured(words, env=where.environment(RESOURCE), timeout=20))


def able(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if "Operation not permitted" in done.stderr + done.stdout:
        pytest.skip("no mount namespace can be made here")
    return done


@pytest.mark.parametrize("claim", ["", "gpu.nvidia.com/uid-1"])
def test_the_shared_memory_is_that_of_the_clients_and_this_processs_stays(
    folder: Path, claim: str
) -> None:
    """A claim has shared memory of its own."""
    where, name = Place(str(folder)), f"nvct-{folder.name}"
    own = Path(where.shm(claim)) if claim else folder / "shm"
    own.mkdir(parents=True, exist_ok=True)

    done = run(where, "touch", f"/dev/shm/{name}", **({"shm": str(own)} if claim else {}))

    assert done.returncode == 0, done
    assert [path.name for path in own.iterdir()] == [name]
    assert not Path("/dev/shm", name).exists()
    assert (folder / "shm" / name).exists() == (not claim)


START = """
import os, sys
from nvct.agent.mps import shm
from nvct.agent.mps.control import Control
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.place import Place
from nvct.errors import HostError

folder, resource = sys.argv[1:]
control = Control(Daemon(resource=resource, uuids=("GPU-1",)), Place(folder))
try:
    control.start()
except HostError as error:
    print(error)
own = f"{folder}/{resource}"
for path in (f"{own}/pipe", f"{own}/shm" if control.daemon.is_of_claim else f"{folder}/shm"):
    known = os.statvfs(path)
    assert os.stat(path).st_dev != os.stat(folder).st_dev, path
    print(os.path.basename(path), known.f_blocks * known.f_frsize >> 10, known.f_files)
pipes = os.stat(f"{own}/pipe").st_ino
shm.make_folders(Place(folder), control.daemon)
assert os.stat(f"{own}/pipe").st_ino == pipes
control.remove()
print(os.path.exists(own), open("/proc/self/mountinfo").read().count(own + " "))
"""


def start(folder: Path, resource: str) -> list[str]:
    """Start a daemon in a mount namespace, where there is no program; return what is printed."""
    done = able(captured(["unshare", "--mount", sys.executable, "-c", START, folder, resource]))
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_what_the_pods_of_a_claim_write_has_a_limit_and_ends_with_the_claim(folder: Path) -> None:
    kib = -(-(shm.size_kib() // 8) // 4) * 4  # in pages

    _, pipe, memory, after = start(folder, "gpu.nvidia.com/uid-1")

    assert (pipe, memory) == (f"pipe {kib} 16384", f"shm {kib} 16384")
    assert after == "False 0"


def test_what_pods_of_a_resource_write_has_a_limit(folder: Path) -> None:
    _, pipe, memory, after = start(folder, RESOURCE)

    assert (pipe, memory) == ("pipe 16384 1024", f"shm {-(-shm.size_kib() // 4) * 4} 65536")
    assert after == "True 1"


def test_a_volume_whose_mounts_the_host_does_not_see_is_refused_for_a_claim(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm, "CONTAINER_FOLDER", str(folder))  # no mount, let alone a shared one
    claim = Daemon(resource="gpu.nvidia.com/uid-1", uuids=())

    with pytest.raises(HostError) as caught:
        shm.make_folders(Place(str(folder)), claim)

    assert caught.value.hint == "set mountPropagation: Bidirectional for the folder of MPS"
    assert [path.name for path in folder.iterdir()] == ["shm"]


def test_in_the_drivers_root_the_folder_is_at_another_path(folder: Path) -> None:
    """The root is that of this machine by another name, so that it has programs."""
    where = Place(str(folder), "/proc/self/root")

    done = run(where, "ls", "/tmp")

    assert "shm" in done.stdout.split(), done
    pipes = where.environment(RESOURCE)["CUDA_MPS_PIPE_DIRECTORY"]
    assert pipes == f"/tmp/{RESOURCE}/pipe"
    assert set(where.environment(RESOURCE)) >= {"PATH", "CUDA_MPS_LOG_DIRECTORY"}


def test_a_root_without_a_folder_for_it_is_named(folder: Path) -> None:
    done = run(Place(str(folder), str(folder / "nothing")), "ls")

    assert done.returncode == 1
    assert f"cannot start ls below {folder}/nothing" in done.stdout


def test_a_program_that_others_can_change_is_not_started(folder: Path) -> None:
    programs = folder / "root/usr/bin"
    programs.mkdir(parents=True)
    (programs / "mps").write_text("#!/bin/sh\n")
    (programs / "mps").chmod(0o777)

    done = run(Place(str(folder), str(folder / "root")), "mps")

    assert done.returncode == 1
    assert "others than root can change /usr/bin/mps" in done.stdout


def test_the_drivers_root_is_used_if_this_container_lacks_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(place, "CONTAINER_FOLDER", str(folder / "mps"))
    env = {"MPS_ROOT": str(folder), "DRIVER_ROOT_CTR_PATH": str(folder / "shm")}
    assert place.of_environment(env) == Place(str(folder), str(folder / "shm"))

    (folder / place.PROGRAM).touch(mode=0o755)
    assert place.of_environment(env) == Place(str(folder))
    assert place.of_environment({}).folder == place.DEFAULT_ROOT
    (folder / "mps").mkdir()
    assert place.of_environment(env).folder == str(folder / "mps")
    assert Place("/mps").command("x")[0] == sys.executable


@pytest.mark.parametrize("has_loader", [False, True], ids=["of-gke", "with-a-c-library"])
def test_a_drivers_root_without_a_c_library_is_used_from_the_hosts(
    *, has_loader: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(place, "CONTAINER_FOLDER", str(folder / "mps"))
    host = folder / "host"
    driver = host / "home/kubernetes/bin/nvidia"
    (driver / "lib64").mkdir(parents=True)
    if has_loader:
        (driver / "lib64/ld-linux-x86-64.so.2").touch()
    env = {
        "MPS_ROOT": str(folder), "DRIVER_ROOT_CTR_PATH": str(driver),
        "DEV_ROOT_CTR_PATH": str(host),
    }  # fmt: skip

    where = place.of_environment(env)

    if has_loader:
        assert where == Place(str(folder), str(driver))
        return
    assert where == Place(str(folder), str(host), driver="/home/kubernetes/bin/nvidia")
    variables = where.environment(RESOURCE)
    assert variables["PATH"].startswith("/home/kubernetes/bin/nvidia/usr/bin:/home/kubernetes/bin")
    assert "/home/kubernetes/bin/nvidia/lib64" in variables["LD_LIBRARY_PATH"].split(":")
