# SPDX-License-Identifier: Apache-2.0
"""Containers of engines that read a CDI specification in layout farm, inside a simulated node."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from nvct.linux.kernel import KERNEL
from nvct_sim import node_changes, tree
from nvct_sim.attach import farm_dir
from tests.integration.inside import (
    SPEC,
    UUID,
    configure,
    generate,
    leave_hybrid_cgroups,
    make,
    run,
)
from tests.support import cdi_engine
from tests.support.processes import captured

ASKS = {"cdi.k8s.io/test": "nvidia.com/gpu=0"}
MOUNT_POINT = "/.nvct/driver"
STDERR = "run.oci.hooks.stderr"
"""crun's annotation for a file that gets what hooks say."""
LISTED = "ldconfig -p | grep 'libcuda.so.1 ' | sed 's/.*=> //'"
OLD, NEW = "580.159.04", "590.48.01"
VERSIONS = f"ls {MOUNT_POINT}/lib64 | grep -c so.{OLD}; ls {MOUNT_POINT}/lib64 | grep -c so.{NEW}"
REFRESHES_ENV = "NVCT_TESTS_REFRESHES"
REFRESHES = int(os.environ.get(REFRESHES_ENV, "8"))


def one_mount(work: Path) -> None:
    """A container has one mount of the driver's files and one hook, and finds the driver."""
    configure(work)
    common = generate()["containerEdits"]
    targets = [mount["containerPath"] for mount in common["mounts"]]
    assert targets == [MOUNT_POINT, "/run/nvidia-persistenced/socket"]
    assert len(common["hooks"]) == 1
    script = (
        f"nvidia-smi -L; echo --; {LISTED}; echo --; ldconfig; {LISTED}; echo --; nvidia-smi -L;"
        " echo --; cat /etc/OpenCL/vendors/*.icd"
    )
    said = run(work, make(work, "s-one", script, annotations=ASKS))
    assert said.returncode == 0, said
    first, listed, again, last, icds = said.stdout.split("--\n")
    assert len(UUID.findall(first)) == len(UUID.findall(last)) == 1, said
    assert icds.split() == ["libnvidia-opencl.so.1"]
    assert listed.split()[0] == again.split()[0] == f"{MOUNT_POINT}/lib64/libcuda.so.1", said


def nvct(*words: str, check: bool = True) -> None:
    """Run a command of this checkout."""
    program = Path(sys.executable).with_name("nvct")
    done = captured([program, *words])
    assert not check or done.returncode == 0, done


def publish(*, check: bool = True) -> None:
    """Do what the unit does when the driver or a GPU comes or goes."""
    nvct("refresh", check=check)
    nvct("publish", "--output", SPEC, check=check)


def start(work: Path, name: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a container as an engine does that reads the specification."""
    folder = make(work, name, script)
    done = engine_run(work, folder)
    shutil.rmtree(folder)
    return done


def engine_run(
    work: Path, folder: Path, program: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a bundle as an engine does that reads the specification."""
    path = folder / "config.json"
    document = cdi_engine.inject(json.loads(path.read_text(encoding="utf-8")), SPEC, ["0"])
    path.write_text(json.dumps(document), encoding="utf-8")
    return run(work, folder, program or shutil.which("runc"))


def view() -> str:
    """Return the view that the specification names."""
    spec = json.loads(Path(SPEC).read_text(encoding="utf-8"))
    return str(spec["containerEdits"]["mounts"][0]["hostPath"])


def a_view_that_is_gone(work: Path) -> None:
    """A container whose view is gone, or empty, is not started."""
    configure(work)
    publish()
    place = Path(view())
    place.rename(place.with_name("moved"))
    gone = start(work, "gone", "echo started")
    assert gone.returncode == 1, gone
    assert str(place) in gone.stderr, gone
    place.mkdir()
    empty = start(work, "empty", "echo started")
    assert empty.returncode == 1, empty
    assert f"the view of the driver at {MOUNT_POINT} has no lib64/" in empty.stderr, empty
    assert "started" not in gone.stdout + empty.stdout
    if crun := shutil.which("crun"):
        folder = make(work, "by-crun", "echo started", annotations={STDERR: f"{work}/said"})
        leave_hybrid_cgroups()
        assert engine_run(work, folder, crun).returncode == 1
        said = (work / "said").read_text(encoding="utf-8")
        assert f"the view of the driver at {MOUNT_POINT} has no lib64/" in said
    place.rmdir()
    publish()  # makes it again
    assert start(work, "again", "echo started").stdout == "started\n"
    shutil.rmtree(place.with_name("moved"))


def a_view_stays_while_it_is_named(work: Path) -> None:
    """A view that a specification names is not collected, also of a driver that is not loaded."""
    configure(work)
    publish()
    named = view()
    os.utime(SPEC, (1, 1))
    (node,) = tree.list_nodes(work / "nodes")
    node_changes.reload_module(node_changes.upgrade(node, NEW))
    nvct("refresh")
    nvct("farm", "gc")
    assert Path(named).is_dir()
    assert start(work, "still", "echo started").stdout == "started\n"
    nvct("publish", "--output", SPEC)
    assert view() != named
    assert NEW in view()
    for folder in (SPEC, "/run/nvct/own.plan"):
        os.utime(folder, (1, 1))
    nvct("farm", "gc")
    assert not Path(named).exists()


def refreshes_under_load(work: Path) -> None:
    """While the driver on the disk changes, every container starts, with the loaded driver only."""
    configure(work)
    publish()
    (node,) = tree.list_nodes(work / "nodes")
    done = threading.Event()
    results: list[subprocess.CompletedProcess[str]] = []

    def creates(number: int) -> None:
        while not done.is_set():
            results.append(start(work, f"load-{number}", f"{VERSIONS}; nvidia-smi -L"))

    begun = time.monotonic()
    threads = [threading.Thread(target=creates, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(REFRESHES):
            node = node_changes.upgrade(node, (NEW, OLD)[number % 2])
            publish()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    seconds = time.monotonic() - begun
    print(
        f"{REFRESHES} refreshes, {len(results)} containers, {len(results) / seconds:.1f} a second"
    )
    assert len(results) > REFRESHES
    for result in results:
        assert result.returncode == 0, result
        old, new, listed = result.stdout.split("\n", 2)
        assert (int(old) > 30, int(new)) == (True, 0), result
        assert len(UUID.findall(listed)) == 1, result


def a_farm_dir_that_is_changed(work: Path) -> None:
    """The specification names the former view until the next publish; containers start always."""
    configure(work)
    publish()
    former = Path(view())
    configure(work, f'[nvct]\nfarm-dir = "{farm_dir()}-2"\n')
    assert start(work, "former", "nvidia-smi -L").returncode == 0
    nvct("refresh")
    nvct("farm", "gc")
    assert former.is_dir()
    publish()
    assert view().startswith(f"{farm_dir()}-2/")
    assert start(work, "next", "nvidia-smi -L").returncode == 0


def a_farm_on_another_file_system(work: Path) -> None:
    """Links are not possible there: a mount for each file, or a view of mounts if asked for."""
    folder = work / "other"
    folder.mkdir()
    KERNEL.mount("tmpfs", str(folder), "tmpfs")
    folder.chmod(0o755)
    configure(work, f'[nvct]\nlayout = "farm"\nfarm-dir = "{folder}"\n')
    publish()
    assert str(folder) not in Path(SPEC).read_text(encoding="utf-8")
    said = start(work, "files", f"nvidia-smi -L; {LISTED}")
    assert len(UUID.findall(said.stdout)) == 1, said
    assert MOUNT_POINT not in said.stdout, said
    ctk = Path(sys.executable).with_name("nvidia-ctk")
    subprocess.run([ctk, "cdi", "generate", "--layout=farm", "--output", SPEC], check=True)
    assert view().startswith(str(folder))
    said = start(work, "view", f"nvidia-smi -L; {LISTED}")
    assert len(UUID.findall(said.stdout)) == 1, said
    assert said.stdout.splitlines()[-1] == f"{MOUNT_POINT}/lib64/libcuda.so.1", said


def killed(work: Path) -> None:
    """Wherever a refresh is killed, containers start; the next refresh leaves nothing behind."""
    configure(work)
    publish()
    (node,) = tree.list_nodes(work / "nodes")
    begun = time.monotonic()
    publish()
    duration = time.monotonic() - begun
    chosen = random.Random(5)
    for number in range(REFRESHES):
        node = node_changes.upgrade(node, (NEW, OLD)[number % 2])
        code = "from tests.integration import spec_farm; spec_farm.publish(check=False)"
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        time.sleep(chosen.uniform(0, duration))
        os.killpg(process.pid, 9)
        process.wait()
        after = start(work, f"killed-{number}", f"{VERSIONS}; nvidia-smi -L")
        assert after.returncode == 0, after
        assert len(UUID.findall(after.stdout)) == 1, after
    publish()
    names = os.listdir(farm_dir())
    assert not [name for name in names if name.startswith((".build-", ".gone-", ".nvct-"))], names


def a_volume_inside_the_view(work: Path) -> None:
    """A volume whose place leads into the view by a link of the image leaves nothing on the host.

    crun makes the mount point before the view is read-only; the next refresh removes it.
    """
    configure(work)
    publish()
    before = sorted(Path(view()).rglob("*"))
    (work / "volume").mkdir()
    (work / "file").write_text("planted", encoding="utf-8")
    leave_hybrid_cgroups()
    for program in filter(None, map(shutil.which, ("runc", "crun"))):
        for source, place in (("volume", "planted/b"), ("file", "libplanted.so.1")):
            mount = {"destination": f"/data/lib64/{place}", "type": "bind",
                     "source": str(work / source), "options": ["rbind"]}  # fmt: skip
            folder = make(work, "inside", "true", mounts=[mount])
            (folder / "rootfs/data").symlink_to(MOUNT_POINT)
            said = engine_run(work, folder, program)
            assert "runc" not in program or said.returncode, said
            shutil.rmtree(folder)
        nvct("refresh")
        assert sorted(Path(view()).rglob("*")) == before
