# SPDX-License-Identifier: Apache-2.0
"""Installs packages in a Debian of its own, beside a simulated node; runs in that node.

The Debian is pivoted into, so that dpkg, the maintainer scripts, the programs and runc see nothing
else; /proc, /dev, /sys and /run are the node's, with the driver in /run/nvidia/driver.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.constants import CLONE_NEWNS, MNT_DETACH, MS_BIND, MS_REC
from nvct.linux.kernel import KERNEL
from nvct.linux.syscall import syscall
from tests.integration.inside import make
from tests.support.processes import captured

PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]  # its system call
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASKS = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
ROOT_ENV, DEBS_ENV, STEPS_ENV = "NVCT_TEST_ROOT", "NVCT_TEST_DEBS", "NVCT_TEST_STEPS"
PUBLISHED = "/run/cdi/nvidia.yaml"
CONFIG = '# the admin was here\n[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n'
PRIVATE_MOUNTS = "warning: private mounts in chroot not implemented"
"""What rpm from 4.20 on says whenever it gets --root."""
DRIVER_SPEC = r"""
Name: kmod-nvidia
Version: @
Release: 1
Summary: the driver
License: none
BuildArch: noarch
%description
It shows what its scripts see.
%install
mkdir -p %{buildroot}/usr/lib/modules/0
echo @ > %{buildroot}/usr/lib/modules/0/nvidia.ko
%pre
cd /run/nvct-agent && ls driver* > /tmp/pre-@ 2>&1 || :
%post
cd /run/nvct-agent && ls driver* > /tmp/post-@ 2>&1 || :
%files
/usr/lib/modules/0/nvidia.ko
"""
NOT_OURS = (
    "proc", "sys", "dev", "run", "tmp", "var/lib/dpkg", "var/log", "var/cache", "etc/ld.so.cache",
)  # fmt: skip
"""What is not of this tree, or what an installation of any package changes."""


def installed(work: Path) -> None:
    """Run the steps, a shell script, in the Debian."""
    make(work, "gpu", "nvidia-smi -L", env=[*ASKS])
    make(work, "plain", "echo plain container", env=[])
    tree = _layered(work, Path(os.environ[ROOT_ENV]))
    before = _files(Path(os.environ[ROOT_ENV]))
    done = _inside(tree, ["sh", "-eu", "-c", os.environ[STEPS_ENV], "steps", str(work)])
    sys.stdout.write(done.stdout + done.stderr)
    left = sorted(_files(tree) - before)
    assert done.returncode == 0, done.stdout + done.stderr
    (work / "said").write_text(done.stdout, encoding="utf-8")
    (work / "left").write_text("\n".join(left), encoding="utf-8")


def rpm_installed(work: Path) -> None:
    """Install by the host's rpm into the Debian, use it there, and erase it."""
    make(work, "gpu", "nvidia-smi -L", env=[*ASKS])
    tree = _layered(work, Path(os.environ[ROOT_ENV]))
    config = tree / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir()
    config.write_text(CONFIG, encoding="utf-8")
    before = _files(tree)
    rpms = sorted(Path(os.environ[DEBS_ENV]).glob("*.rpm"))
    names = [path.name.rsplit("-", 2)[0] for path in rpms]
    _rpm(tree, "-i", *map(str, rpms))
    done = _inside(tree, ["sh", "-eu", "-c", os.environ[STEPS_ENV], "steps", str(work)])
    assert done.returncode == 0, done.stdout + done.stderr
    (work / "said").write_text(done.stdout, encoding="utf-8")
    changed = _rpm(tree, "-V", *names, check=False)
    driver = _rpm_driver(work, tree)
    missing = ""
    if "nvct-sim" in names:
        names.remove("nvct-sim")
        _rpm(tree, "-e", "nvct-sim")
        missing = _inside(tree, ["nvct", "sim", "list"]).stderr
    _rpm(tree, "-e", *names)
    kept = [config.read_text(encoding="utf-8")] if config.exists() else []
    left = sorted(_files(tree) - before - {"var/lib/rpm"})
    # Folders that are other packages' in a distribution of rpms stay behind here.
    left = [p for p in left if not p.startswith("var/lib/rpm/") and not (tree / p).is_dir()]
    seen = {"left": left, "changed": changed, "kept": kept, "spec": os.path.exists(PUBLISHED)}
    seen |= {"missing": missing, "driver": driver}
    (work / "seen").write_text(json.dumps(seen), encoding="utf-8")


def _rpm_driver(work: Path, tree: Path) -> dict[str, str]:
    """Install, upgrade and erase a driver's package; return what its scripts see of a release."""
    with SharedFolder.open("/run/nvct-agent", create=0o700) as folder:
        folder.listen("agent.sock").close()  # of an agent that has just ended
        for version in ("1", "2"):
            spec = work / f"kmod-{version}.spec"
            spec.write_text(DRIVER_SPEC.replace("@", version), encoding="utf-8")
            command = ["rpmbuild", "-bb", "--define", f"_topdir {work}/rpmbuild", str(spec)]
            subprocess.run(command, check=True, capture_output=True)
            (rpm,) = (work / "rpmbuild/RPMS/noarch").glob(f"kmod-nvidia-{version}-*.rpm")
            _rpm(tree, "-U", str(rpm))
            names = " ".join(name for name in folder.names() if name.startswith("driver"))
            (tree / f"tmp/end-{version}").write_text(names, encoding="utf-8")
        _rpm(tree, "-e", "kmod-nvidia")
        folder.unlink("agent.sock")
    found = sorted((tree / "tmp").glob("*-[12]"))
    return {path.name: path.read_text(encoding="utf-8").strip() for path in found}


def _rpm(tree: Path, *words: str, check: bool = True) -> str:
    command = ["rpm", "--root", str(tree), "--dbpath", "/var/lib/rpm", "--nodeps", *words]
    done = captured(
        command, stdin=subprocess.DEVNULL, env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
    )
    said = [line for line in done.stderr.splitlines() if line != PRIVATE_MOUNTS]
    complaints = [line for line in said if "warning" in line]
    assert not check or (done.returncode == 0 and not complaints), done.stderr
    return done.stdout


def _layered(work: Path, root: Path) -> Path:
    stage = _stage(work)
    stage.mkdir()
    KERNEL.mount("layer", str(stage), "tmpfs", 0, "mode=755")
    for name in ("upper", "work", "tree"):
        (stage / name).mkdir()
    tree = stage / "tree"
    options = f"lowerdir={root},upperdir={stage}/upper,workdir={stage}/work"
    KERNEL.mount("layer", str(tree), "overlay", 0, options)
    for path in ("/proc", "/sys", "/dev", "/run", str(work), os.environ[DEBS_ENV]):
        place = tree / path.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        KERNEL.mount(path, str(place), None, MS_BIND | MS_REC)
    return tree


def _stage(work: Path) -> Path:
    return work.with_name(f"{work.name}-layer")


def _inside(tree: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    def pivot() -> None:
        KERNEL.unshare(CLONE_NEWNS)
        os.chdir(tree)
        syscall(PIVOT_ROOT, b".", b".")
        KERNEL.umount2(".", MNT_DETACH)
        os.chdir("/")

    return captured(
        command, preexec_fn=pivot, timeout=300,
        stdin=subprocess.DEVNULL, env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBS": os.environ[DEBS_ENV]},
        cwd=None,
    )  # fmt: skip


def _files(folder: Path) -> set[str]:
    found = set()
    for place, names, files in os.walk(folder):
        at = os.path.relpath(place, folder)
        names[:] = [n for n in names if os.path.normpath(f"{at}/{n}") not in NOT_OURS]
        found |= {os.path.normpath(f"{at}/{n}") for n in [*names, *files]}
    return {path for path in found if path not in NOT_OURS}


def bump(debs: Path, version: str) -> None:
    """Write the packages again with a higher version, into debs/VERSION."""
    out = debs / version
    out.mkdir()
    for deb in sorted(debs.glob("*.deb")):
        tree = debs / "unpacked"
        subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
        control = tree / "DEBIAN/control"
        text = control.read_text(encoding="utf-8")
        old = next(line for line in text.splitlines() if line.startswith("Version: "))[9:]
        text = text.replace(f"Version: {old}", f"Version: {version}")
        control.write_text(text.replace(f"(= {old})", f"(= {version})"), encoding="utf-8")
        subprocess.run(["dpkg-deb", "-Znone", "-b", tree, out], check=True, capture_output=True)
        shutil.rmtree(tree)


def undivided(debs: Path, version: str) -> None:
    """Write an older nvct-base that has the files of nvct-sim, into debs/VERSION."""
    out = debs / version
    out.mkdir()
    tree = debs / "unpacked"
    subprocess.run(["dpkg-deb", "-R", next(debs.glob("nvct-base_*.deb")), tree], check=True)
    subprocess.run(["dpkg-deb", "-x", next(debs.glob("nvct-sim_*.deb")), tree], check=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text(encoding="utf-8").splitlines()
    lines = [f"Version: {version}" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(lines) + "\n", encoding="utf-8")
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, out], check=True, capture_output=True)
    shutil.rmtree(tree)


def unfit(debs: Path) -> None:
    """Write a version of nvct-base whose first script fails, into debs/unfit."""
    out = debs / "unfit"
    out.mkdir()
    tree = debs / "unpacked"
    deb = next(debs.glob("9.9.9/nvct-base_*.deb"))
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    (tree / "DEBIAN/preinst").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, out], check=True, capture_output=True)
    shutil.rmtree(tree)
