# SPDX-License-Identifier: Apache-2.0
"""What the tests of the farm layout do inside a simulated node; each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from nvct.linux.constants import CLONE_NEWUSER, MNT_DETACH, MS_BIND, MS_RDONLY, MS_REMOUNT
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV
from nvct_sim import bundle, elf_writer, node_changes, tree
from tests.integration.inside import (
    DRIVER_ROOT,
    UUID,
    command,
    configure,
    leave_hybrid_cgroups,
    make,
    run,
    shim,
)
from tests.support.processes import captured

ASKS = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
LISTED = "ldconfig -p | grep 'libcuda.so.1 ' | sed 's/.*=> //'"
WRITE = (
    "for f in $(find /usr/local/nvidia /etc/vulkan /etc/OpenCL /usr/share ! -type d); do "
    "if (: >> $f) 2>/dev/null; then echo WRITABLE $f; fi; done; "
    "for d in $(find /usr/local/nvidia -type d); do "
    "if touch $d/x 2>/dev/null; then echo WRITABLE $d; fi; done; "
    "rm -f /usr/local/nvidia/lib64/libcuda.so.1; "
    "test -e /usr/local/nvidia/lib64/libcuda.so.1 || echo REMOVED; echo done"
)
VIEW = "/usr/local/nvidia"
MAPPED = 200_000


def farm(work: Path, runtime: str = "runc") -> None:
    """Write a config.toml with layout = "farm"."""
    configure(
        work,
        f'[nvidia-container-runtime]\ndebug = "{work}/shim.log"\nruntimes = ["{runtime}"]\n'
        f'[nvct]\nlayout = "farm"\nfarm-dir = "{work}/farm"\n',
    )


def decided(work: Path) -> str:
    """Return the last line of the shim's log."""
    return (work / "shim.log").read_text(encoding="utf-8").splitlines()[-1]


def edit(folder: Path, **members: Any) -> dict[str, Any]:
    """Change members of a bundle's config.json; return it."""
    path = folder / "config.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, value in members.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(document), encoding="utf-8")
    return document


def one_mount(work: Path) -> None:
    """A compute container has one mount, no hook, and the driver where programs look for it."""
    farm(work)
    script = (
        f"nvidia-smi -L; echo --; {LISTED}; echo --; ldconfig; {LISTED}; echo --; nvidia-smi -L;"
        " echo --; cat /etc/OpenCL/vendors/*.icd"
    )
    folder = make(work, "f-one", script, env=ASKS)
    said = run(work, folder)
    assert said.returncode == 0, said
    first, listed, again, last, icds = said.stdout.split("--\n")
    assert len(UUID.findall(first)) == len(UUID.findall(last)) == 1, said
    assert listed.split()[0] == again.split()[0] == f"{VIEW}/lib64/libcuda.so.1", said
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "hooks" not in document
    files = [
        m for m in document["mounts"] if not m["destination"].startswith(("/run", "/var/run"))
    ]
    ours = [mount["destination"] for mount in files[5:]]  # five are the engine's
    assert ours == [VIEW]
    icd = folder / "rootfs/etc/OpenCL/vendors/nvidia.icd"
    assert str(icd.readlink()) == f"{VIEW}/share/OpenCL/vendors/nvidia.icd"
    assert icds.split() == ["libnvidia-opencl.so.1"], said
    assert "layout farm at /usr/local/nvidia" in decided(work)


def nothing_can_be_written(work: Path) -> None:
    """No file of any injected mount can be opened for writing, by the container's root."""
    farm(work)
    for words in (ASKS, ["NVIDIA_VISIBLE_DEVICES=all"]):
        said = run(work, make(work, f"w-{len(words)}", WRITE, env=words))
        assert said.stdout == "done\n", said


def exec_sessions(work: Path) -> None:
    """Who comes in later finds the driver, too: nothing hangs on variables."""
    farm(work)
    folder = make(work, "f-exec", "sleep 60", env=ASKS)
    words = command(work, folder)
    name = words[-1]
    at = words.index("run")
    subprocess.run([*words[:at], "create", *words[at + 1 :]], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        subprocess.run([*words[:at], "start", name], check=True)
        inside = [*words[:at], "exec", "--env", "PATH=/usr/bin:/bin", name, "nvidia-smi", "-L"]
        said = captured(inside)
        assert len(UUID.findall(said.stdout)) == 1, said
    finally:
        subprocess.run([*words[:at], "delete", "--force", name], check=True)


def roots(work: Path) -> None:
    """Read-only containers, restarts, and an image without a cache or with a library of its own."""
    farm(work)
    folder = make(work, "f-ro", f"nvidia-smi -L; {LISTED}", env=ASKS)
    edit(folder, root={"readonly": True})
    said = run(work, folder)
    assert len(UUID.findall(said.stdout)) == 1, said

    before = (folder / "rootfs/etc/ld.so.cache").read_bytes()
    again = run(work, folder)
    assert again.stdout == said.stdout, again
    assert (folder / "rootfs/etc/ld.so.cache").read_bytes() == before

    bare = make(work, "f-bare", "nvidia-smi -L", env=ASKS)
    (bare / "rootfs/etc/ld.so.cache").unlink()
    said = run(work, bare)
    assert len(UUID.findall(said.stdout)) == 1, said


def read_only_mount(work: Path) -> None:
    """A root that is itself mounted read-only: below /dev, by variables."""
    farm(work)
    folder = make(work, "f-erofs", "nvidia-smi -L; env", env=ASKS)
    root = folder / "rootfs"
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
    KERNEL.mount(str(root), str(root), None, MS_BIND)
    KERNEL.mount(None, str(root), None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    edit(folder, root={"readonly": True})
    try:
        said = run(work, folder)
    finally:
        KERNEL.umount2(str(root), MNT_DETACH)
    assert said.returncode == 0, said
    assert len(UUID.findall(said.stdout)) == 1, said
    assert "LD_LIBRARY_PATH=/dev/.nvct/lib64" in said.stdout


def compatibility(work: Path) -> None:
    """Newer CUDA libraries of the image are found first, older ones are not; also after ldconfig."""
    farm(work)
    for version, wins in (("590.44.01", True), ("550.54.15", False)):
        folder = make(
            work, f"f-{version}", f"{LISTED}; ldconfig; {LISTED}; nvidia-smi -L", env=ASKS
        )
        compat = folder / "rootfs/usr/local/cuda/compat"
        compat.mkdir(parents=True)
        library = elf_writer.shared_object(os.uname().machine, soname="libcuda.so.1")
        (compat / f"libcuda.so.{version}").write_bytes(library)
        (compat / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
        said = run(work, folder)
        place = f"{VIEW}/drv" if wins else VIEW
        first = "/usr/local/cuda/compat" if wins else f"{VIEW}/lib64"
        lines = said.stdout.splitlines()
        assert lines[0] == f"{first}/libcuda.so.1", said
        assert lines.count(f"{first}/libcuda.so.1") == 2, said
        assert f"{place}/lib64/libcuda.so.1" in lines
        assert len(UUID.findall(said.stdout)) == 1, said


def unfit(work: Path) -> None:
    """Where the layout does not fit, the classic one is there, and the log says why."""
    farm(work)
    volume = work / "volume"
    volume.mkdir()
    mount = {
        "destination": "/usr/local",
        "type": "bind",
        "source": str(volume),
        "options": ["bind"],
    }
    said = run(work, make(work, "u-volume", "nvidia-smi -L", env=ASKS, mounts=[mount]))
    assert len(UUID.findall(said.stdout)) == 1, said
    assert "layout classic: /usr/local is a mount" in decided(work)
    assert list(volume.iterdir()) == []

    folder = make(work, "u-file", "nvidia-smi -L; cat /usr/local/nvidia", env=ASKS)
    (folder / "rootfs/usr/local/nvidia").write_text("mine\n", encoding="utf-8")
    said = run(work, folder)
    assert len(UUID.findall(said.stdout)) == 1, said
    assert said.stdout.endswith("mine\n")
    assert "layout classic: the image has a file /usr/local/nvidia" in decided(work)


def chosen(work: Path) -> None:
    """A container of a root that farm has left its links in chooses classic, and may write."""
    farm(work)
    libraries = f"/usr/lib/{os.uname().machine}-linux-gnu"
    script = (
        f"nvidia-smi -L; for f in {libraries}/lib*.so*; do test -e $f || echo DANGLING $f; done; "
        f"readlink -f {libraries}/libcuda.so; mkdir -p {VIEW} && touch {VIEW}/x && echo written"
    )
    folder = make(work, "f-chosen", script, env=ASKS)
    config = (folder / "config.json").read_bytes()
    said = run(work, folder)
    assert "written" not in said.stdout, said  # a view is read-only
    for mark in (b'"NVIDIA_DRIVER_LAYOUT=farm",', b'"NVIDIA_DRIVER_LAYOUT=classic",'):
        asks = config.replace(b'"NVIDIA_VISIBLE', mark + b'"NVIDIA_VISIBLE')
        (folder / "config.json").write_bytes(asks)
        said = run(work, folder)
        assert said.returncode == (b"farm" in mark), said
        assert len(UUID.findall(said.stdout)) == 1, said
        assert "DANGLING" not in said.stdout, said
    assert said.stdout.splitlines()[-1] == "written"
    assert f"{libraries}/libcuda.so.580.159.04" in said.stdout
    assert "NVIDIA_DRIVER_LAYOUT asks for it" in decided(work)


def crun(work: Path) -> None:
    """The same by crun."""
    leave_hybrid_cgroups()
    found = shutil.which("crun")
    if not found:
        raise SystemExit("SKIP: crun is not installed")
    bare = run(work, make(work, "fc-bare", "echo runs"), found)
    if bare.returncode:
        raise SystemExit(f"SKIP: crun does not run here: {bare.stderr.strip()}")
    farm(work, found)
    said = run(work, make(work, "fc", f"nvidia-smi -L; {LISTED}; {WRITE}", env=ASKS))
    assert said.returncode == 0, said
    assert len(UUID.findall(said.stdout)) == 1, said
    assert said.stdout.splitlines()[1:] == [f"{VIEW}/lib64/libcuda.so.1", "done"], said
    assert "layout farm" in decided(work)


def podman(work: Path) -> None:
    """The same by Podman, on an overlay of a folder and on the folder itself."""
    found = shutil.which("podman")
    if not found:
        raise SystemExit("SKIP: podman is not installed")
    farm(work)
    Path("/etc/nvidia-container-runtime").mkdir(exist_ok=True)  # conmon hands on no variables
    shutil.copy(os.environ[CONFIG_ENV], "/etc/nvidia-container-runtime/config.toml")
    conf = work / "containers.conf"
    conf.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n'
        'pids_limit = 0\nnetns = "none"\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
        encoding="utf-8",
    )
    env = {**os.environ, "CONTAINERS_CONF": str(conf), "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    store = [f"--{key}=/run/nvct-podman/{key}" for key in ("root", "runroot", "tmpdir")]

    def start(runtime: str, root: str, script: str) -> subprocess.CompletedProcess[str]:
        asks = [f"--env={entry}" for entry in ASKS]
        words = [found, *store, "--storage-driver=vfs", f"--runtime={runtime}", "run", "--rm",
                 "--network=none", *asks, "--rootfs", root, "/bin/sh", "-c", script]  # fmt: skip
        return captured(words, env=env, timeout=100, stdin=subprocess.DEVNULL)

    root = f"{work}/rootfs:O"
    bare = start(shutil.which("runc") or "runc", root, "echo runs")
    if bare.stdout != "runs\n":
        raise SystemExit(f"SKIP: podman does not run here: {bare.stderr.strip()[-300:]}")
    said = start(shim(), root, f"nvidia-smi -L; {LISTED}")
    assert said.returncode == 0, said
    assert len(UUID.findall(said.stdout)) == 1, said
    assert said.stdout.splitlines()[1] == f"{VIEW}/lib64/libcuda.so.1", said
    assert "layout farm" in decided(work)

    mine = work / "mine"
    bundle.clone_rootfs(work / "rootfs", mine)
    before = (mine / "etc/ld.so.cache").read_bytes()
    said = start(shim(), str(mine), "nvidia-smi -L; env")
    assert len(UUID.findall(said.stdout)) == 1, said
    assert f"LD_LIBRARY_PATH={VIEW}/lib64" in said.stdout
    assert (mine / "etc/ld.so.cache").read_bytes() == before, (
        "somebody's own folder was written to"
    )


def user_namespace(work: Path) -> None:
    """In a user namespace what is written belongs to its root, on an idmapped root as well."""
    farm(work)
    _without_staging(work)
    for kind in ("chowned", "idmapped"):
        folder = make(
            work, f"f-{kind}", f"nvidia-smi -L; {LISTED}; ls -ln /etc/ld.so.cache", env=ASKS
        )
        root = folder / "rootfs"
        owner = 0
        if kind == "chowned":
            owner = MAPPED
            shutil.rmtree(root)
            shutil.copytree(work / "rootfs", root, symlinks=True)  # no hard links: owners change
            for path in [root, *root.rglob("*")]:
                os.chown(path, owner, owner, follow_symlinks=False)
        else:
            _idmap(root)
        mapping = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        document = edit(folder, linux={"uidMappings": mapping, "gidMappings": mapping})
        spaces = [*document["linux"]["namespaces"], {"type": "user"}]
        edit(folder, linux={"namespaces": spaces})
        for path in (work, *work.parents):
            if path.stat().st_uid == 0 and path != path.parent:
                path.chmod(path.stat().st_mode | 0o711)
        said = run(work, folder)
        assert "layout farm" in decided(work), decided(work)
        assert "exec sessions lack" not in decided(work), decided(work)
        assert said.returncode == 0, said
        lines = said.stdout.splitlines()
        assert f"{VIEW}/lib64/libcuda.so.1" in lines, said
        assert lines[-1].split()[2:4] == ["0", "0"], said
        for name in ("ld.so.cache", "ld.so.conf.d/00-nvct.conf"):
            found = (root / "etc" / name).lstat()
            assert found.st_uid == found.st_gid == MAPPED, (kind, name)


def _without_staging(work: Path) -> None:
    """Name the driver root as the node has it: hard links can be made to it."""
    (node,) = tree.list_nodes(work / "nodes")
    path = Path(os.environ[CONFIG_ENV])
    text = path.read_text(encoding="utf-8").replace(DRIVER_ROOT, str(node.driver_root))
    path.write_text(text, encoding="utf-8")


def _idmap(root: Path) -> None:
    """Mount a folder over itself so that its root is MAPPED on the host."""
    from nvct.linux import constants as c

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        KERNEL.unshare(CLONE_NEWUSER)
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {MAPPED} 65536", encoding="ascii")
    space = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    tree_fd = KERNEL.open_tree(c.AT_FDCWD, str(root), c.OPEN_TREE_CLONE)
    try:
        KERNEL.mount_setattr(
            tree_fd, "", c.AT_EMPTY_PATH, attr_set=c.MOUNT_ATTR_IDMAP, userns_fd=space
        )
    except OSError as error:
        raise SystemExit(f"SKIP: no idmapped mounts on this file system: {error}") from error
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(space)
    KERNEL.move_mount(tree_fd, "", c.AT_FDCWD, str(root), c.MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree_fd)


def upgrade(work: Path) -> None:
    """A driver upgraded on disk: containers get the user space of the loaded module until then."""
    farm(work)
    first = run(work, make(work, "g-first", "nvidia-smi -L", env=ASKS))
    assert len(UUID.findall(first.stdout)) == 1, first
    (node,) = tree.list_nodes(work / "nodes")
    upgraded = node_changes.upgrade(node, "590.48.01")
    script = f"ls {VIEW}/lib64/; nvidia-smi -L"
    between = run(work, make(work, "g-between", script, env=ASKS))
    assert between.returncode == 0, between
    assert "libcuda.so.580.159.04" in between.stdout, between
    node_changes.reload_module(upgraded)
    after = run(work, make(work, "g-after", script, env=ASKS))
    assert "libcuda.so.590.48.01" in after.stdout, after
