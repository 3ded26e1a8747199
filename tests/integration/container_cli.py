# SPDX-License-Identifier: Apache-2.0
"""What the tests of nvidia-container-cli do inside a simulated node; each is a process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nvct.paths import OWN_CONFIG_ENV
from tests.integration.inside import DRIVER_ROOT, UUID, configure, make, run
from tests.integration.prestart import edit
from tests.integration.rootless import is_open
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); "
    "from nvct.cli.container.main import nvidia_container_cli as f; f()"
)
SMI = "nvidia-smi -L; ldconfig -p | grep -c libcuda.so.1"
IN_A_USER_NAMESPACE = """
import ctypes, os, sys
ready, mapped = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    assert ctypes.CDLL(None).unshare(0x10000000 | 0x00020000) == 0
    os.write(ready[1], b"x")
    os.read(mapped[0], 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(ready[0], 1)
for name in ("uid_map", "gid_map"):
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write("0 100000 65536")
os.write(mapped[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def cli(*argv: str) -> subprocess.CompletedProcess[str]:
    return captured([sys.executable, "-c", PROGRAM, *argv], timeout=60)


def script(path: Path) -> Path:
    """Write the program as one file."""
    path.write_text(f"#!{sys.executable}\n{PROGRAM}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def info(work: Path) -> None:
    """Info prints what nvidia-smi prints of each GPU, brand and architecture too."""
    configure(work)
    smi = captured(
        [f"{DRIVER_ROOT}/usr/bin/nvidia-smi", "-L"], check=True,
        env={"LD_LIBRARY_PATH": f"{DRIVER_ROOT}/usr/lib/x86_64-linux-gnu"},
    )  # fmt: skip
    uuids = UUID.findall(smi.stdout)
    said = cli("--load-kmods", "info", "--csv")
    assert (said.returncode, said.stderr) == (0, ""), said
    _, versions, _, _, *rows = said.stdout.splitlines()
    assert versions.endswith(",13.0"), said
    gpus = [row.split(",") for row in rows]
    assert [gpu[:3] for gpu in gpus] == [
        [str(n), str(n), "NVIDIA H100 80GB HBM3"] for n in range(8)
    ]
    assert {(gpu[3], gpu[6]) for gpu in gpus} == {("Nvidia", "9.0")}
    assert {gpu[4] for gpu in gpus} <= set(uuids), uuids
    blocks = cli("info").stdout.split("\n\n")
    assert len(blocks) == 9
    values = [[line[16:] for line in block.splitlines()] for block in blocks[1:]]
    assert values == gpus


def listed(work: Path) -> None:
    """Everything that list names is there, MIG devices with their capabilities."""
    configure(work)
    lines = cli("list").stdout.splitlines()
    assert len(lines) == len(set(lines)) > 60, lines
    for line in lines:
        root = DRIVER_ROOT if not line.startswith(("/dev/", "/proc/")) else ""
        assert os.path.exists(root + line), line
    caps = [line for line in cli("list", "-d", "3:0").stdout.splitlines() if "cap" in line]
    assert len(caps) == 4, caps
    assert caps[0].startswith("/proc/driver/nvidia/capabilities/gpu3/mig/gi"), caps
    managed = cli("list", "-dall", "--mig-config=all").stdout
    assert "/proc/driver/nvidia/capabilities/mig/config\n" in managed
    assert "/dev/nvidia-caps/nvidia-cap1\n" in managed
    assert "/gi7/access" not in managed


def cli_env() -> list[str]:
    """Return the environment of a hook that calls configure, which reads no NVIDIA_*."""
    return [f"PATH={os.environ['PATH']}", f"{OWN_CONFIG_ENV}={os.environ[OWN_CONFIG_ENV]}"]


def by_pid(work: Path) -> None:
    """A prestart hook that calls configure --pid, as libnvidia-container's did."""
    configure(work)
    program = script(work / "cli")
    cases = {
        "one": ("--device=0 --compute --utility", 0, 1, "1"),
        "mig": ("--device=3:0,1 --compute --utility", 0, 3, "1"),
        "no-cuda": ("--device=0 --utility", 0, 1, "0"),
        "not-met": ("--device=0 --utility '--require=driver>=999'", 1, 0, ""),
    }
    for name, (flags, status, names, libraries) in cases.items():
        folder = make(work, name, f"{SMI} || :")
        hook = script(folder / "hook")
        hook.write_text(
            "#!/bin/sh\n"
            "pid=$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')\n"
            f"exec {program} --load-kmods configure --ldconfig=@/sbin/ldconfig {flags} "
            f"--pid=$pid {folder}/rootfs\n",
            encoding="utf-8",
        )
        edit(folder, hooks={"prestart": [{"path": str(hook), "env": cli_env()}]})
        said = run(work, folder, shutil.which("runc"))
        assert said.returncode == status, said
        assert len(UUID.findall(said.stdout)) == names, said
        assert said.stdout.splitlines()[-1:] == ([libraries] if libraries else []), said
        if status:
            assert "nvidia-container-cli: this node does not meet --require=" in said.stderr, said


def standalone(work: Path) -> None:
    """Without --pid the root is changed where the program runs, and nowhere else."""
    configure(work)
    program = script(work / "cli")
    ways = {
        "private": ["unshare", "--mount"],
        # Its /proc is the host's, in which the number of its shell is another process.
        "pid": ["unshare", "--mount", "--pid", "--fork"],
    }
    if is_open(Path(__file__).parent):  # the program is this checkout's
        ways["user"] = [sys.executable, "-c", IN_A_USER_NAMESPACE]
    for name, enter in ways.items():
        root = Path("/run/roots") / name
        shutil.copytree(work / "rootfs", root, symlinks=True)
        if name == "user":
            for place, folders, files in os.walk(root):
                for entry in [".", *folders, *files]:
                    os.lchown(os.path.join(place, entry), 100000, 100000)
        shutil.copy(program, "/run/cli")
        shutil.copy(os.environ["NVIDIA_CTK_CONFIG_FILE_PATH"], "/run/config.toml")
        text = f"""
            set -e
            mount --rbind {root} {root}
            mkdir -p {root}/dev {root}/proc
            mount -t tmpfs -o nodev x {root}/dev
            mount --rbind /proc {root}/proc
            export NVCT_CONFIG_FILE_PATH=/run/config.toml
            /run/cli --user --debug=/dev/stderr configure --no-cgroups --device=1,3:0 \
                --compute --utility {root}
            chroot {root} /bin/sh -c '{SMI}; ls /dev'
        """
        said = captured([*enter, "sh", "-c", text], timeout=60)
        assert said.returncode == 0, said
        assert len(UUID.findall(said.stdout)) == 3, said
        expected = ["1", "nvidia-caps", "nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidia3"]
        assert said.stdout.split()[-7:] == [*expected, "nvidiactl"], said
        assert "nvidia-container-cli configure, nvct" in said.stderr, said
        assert os.listdir(root / "dev") == []
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        assert str(root) not in mounts


def shared(work: Path) -> None:
    """Where mounts would appear in other namespaces, nothing is done."""
    configure(work)
    program = script(work / "cli")
    text = f"mount --make-rshared / && {program} configure --no-cgroups {work}/rootfs"
    before = sorted(p.name for p in (work / "rootfs").rglob("*"))
    said = captured(["unshare", "--mount", "sh", "-c", text], timeout=60)
    assert said.returncode == 1, said
    assert "is shared with other mount namespaces" in said.stderr, said
    assert sorted(p.name for p in (work / "rootfs").rglob("*")) == before
