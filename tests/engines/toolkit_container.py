# SPDX-License-Identifier: Apache-2.0
"""The container of the toolkit, as a DaemonSet of a GPU operator starts it, in a box.

Its image is only the bundle: no libc, no shell. The mounts are those of a pod's manifest: the
engine's files and socket at other paths than the host's, the host's root read-only at /host.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from nvct.linux import constants
from nvct.linux.kernel import KERNEL
from tests.engines.box import Box

INSTALL_DIR = "/opt/nvidia"
TOOLKIT = f"{INSTALL_DIR}/toolkit"
MOUNTS = (
    ("/", "/host"),
    (INSTALL_DIR, INSTALL_DIR),
    ("/run/nvidia", "/run/nvidia"),
    ("/var/run/cdi", "/var/run/cdi"),
    ("/dev", "/dev"),
    ("/proc", "/proc"),
    ("/sys", "/sys"),
)
ENV = {
    "ROOT": INSTALL_DIR,
    "HOST_ROOT_MOUNT": "/host",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/run/nvidia/driver",
    "CDI_ENABLED": "true",
    "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
}
CONTAINERD = {
    "RUNTIME": "containerd",
    "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
    "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
    "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
    "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
}
DOCKER = {
    "RUNTIME": "docker",
    "RUNTIME_CONFIG": "/runtime/config-dir/daemon.json",
    "RUNTIME_SOCKET": "/runtime/sock-dir/docker.sock",
}
FOLDERS = {
    "containerd": (
        ("/etc/containerd", "/runtime/config-dir"),
        ("/etc/containerd/conf.d", "/runtime/config-dir.d"),
        ("/run/containerd", "/runtime/sock-dir"),
    ),
    "docker": (("/etc/docker", "/runtime/config-dir"), ("/run", "/runtime/sock-dir")),
}
READY = "waiting for a signal"
LOG_LIMIT = 200


class ToolkitContainer:
    """`nvct install` in a container; ends with the box at the latest."""

    def __init__(self, box: Box, bundle: Path, env: dict[str, str]) -> None:
        """Start it and wait until its setup is complete.

        Raises:
            AssertionError: it ends before that; the error has its output.
        """
        self.said: list[str] = []
        process = _start(box, bundle, ["nvct", "install"], ENV | env)
        self._process = process
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line)
            if READY in line:
                return
        process.wait()
        raise AssertionError("".join(self.said[-LOG_LIMIT:]))

    def kill(self) -> None:
        """Kill it, so that it cannot clean up."""
        self._signal(signal.SIGKILL)
        self._process.communicate(timeout=30)

    def _signal(self, number: signal.Signals) -> None:
        pid = self._process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            os.kill(int(file.read().split()[0]), number)

    def stop(self) -> str:
        """End it as a kubelet does; return its output."""
        self._signal(signal.SIGTERM)
        output = self._process.communicate(timeout=120)[0]
        assert self._process.returncode == 0, output
        return output


def call(box: Box, bundle: Path, *arguments: str, env: dict[str, str]) -> tuple[int, str]:
    """Run a program in such a container to its end; return its status and output."""
    process = _start(box, bundle, list(arguments), ENV | env)
    output = process.communicate(timeout=120)[0]
    return process.returncode, output


def _start(
    box: Box, bundle: Path, arguments: list[str], env: dict[str, str]
) -> subprocess.Popen[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
        "from tests.engines.toolkit_container import enter; enter(*sys.argv[1:])"
    )
    inside = [sys.executable, "-c", code, str(box.work), str(bundle), env["RUNTIME"], *arguments]
    namespaces = [f"--{kind}" for kind in ("mount", "net", "uts", "ipc", "pid")]
    return subprocess.Popen(
        ["nsenter", f"--target={box.init}", *namespaces, "--", *inside], env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def enter(work: str, bundle: str, engine: str, *arguments: str) -> None:
    """Make the container's mounts around this process, and exec its program."""
    KERNEL.unshare(constants.CLONE_NEWNS)
    KERNEL.mount(None, "/", None, constants.MS_REC | constants.MS_PRIVATE)
    root = Path(work, "container")
    root.mkdir(exist_ok=True)
    KERNEL.mount("container", str(root), "tmpfs", 0, "mode=755")
    pairs = [*MOUNTS, *FOLDERS[engine], (bundle, "/nvct")]
    for source, target in pairs:
        os.makedirs(source, exist_ok=True)
        path = root / target.lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        KERNEL.mount(source, str(path), None, constants.MS_BIND | constants.MS_REC)
    flags = constants.MS_BIND | constants.MS_REMOUNT | constants.MS_RDONLY
    KERNEL.mount(None, str(root / "host"), None, flags)
    (root / "tmp").mkdir()
    os.chroot(root)
    os.chdir("/")
    os.execve(f"/nvct/bin/{arguments[0]}", list(arguments), dict(os.environ))
