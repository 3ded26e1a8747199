# SPDX-License-Identifier: Apache-2.0
"""Podman as an ordinary user, inside a simulated node: the user, its folders, nvct for it.

All of it is the node's: /etc is private there, and the rest lies in a folder of the matrix.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvct.launcher.install import Built, install
from tests.support.processes import captured

UID = 5001
SUB_ID = 300_000
NAME = "nvct-rootless"
CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
TIMEOUT_S = 60
NEEDED = {
    "podman": "podman",
    "newuidmap": "uidmap",
    "newgidmap": "uidmap",
    "setpriv": "util-linux",
}


def is_open(path: Path) -> bool:
    """Tell whether everybody may read a folder: a checkout below /root is root's alone."""
    return all(os.stat(one).st_mode & 0o005 == 0o005 for one in (path, *path.parents))


class NotPossibleError(Exception):
    """Why no rootless container runs here."""


class User:
    """An ordinary user of the node.

    Attributes:
        home: where everything of it lies.
        run_dir: nvct's, in its XDG_RUNTIME_DIR.
    """

    def __init__(self, home: Path, site: Path, python: str) -> None:
        """Make the user, and an nvct that it may run.

        Raises:
            NotPossibleError: something is missing here.
        """
        for program, package in NEEDED.items():
            if shutil.which(program) is None:
                raise NotPossibleError(f"{program} is not installed (package {package})")
        import yaml

        packages = Path(yaml.__file__).parents[1]
        if not is_open(packages):
            raise NotPossibleError(f"{packages} cannot be read by everybody")
        self.home = home
        self.run_dir = home / "xdg/nvct"
        self._python = python
        for folder in (home, home / "xdg"):
            folder.mkdir(mode=0o700)
            os.chown(folder, UID, UID)
        for name, line in {
            "passwd": f"{NAME}:x:{UID}:{UID}::{home}:/bin/sh\n",
            "group": f"{NAME}:x:{UID}:\n",
            "subuid": f"{NAME}:{SUB_ID}:65536\n",
            "subgid": f"{NAME}:{SUB_ID}:65536\n",
        }.items():
            with Path("/etc", name).open("a", encoding="ascii") as file:
                file.write(line)
        self._install(site, packages)

    def _install(self, site: Path, packages: Path) -> None:
        """Install nvct with a cold side of its own: a virtual environment is its owner's."""
        venv, programs = self.home.with_name("venv"), self.home.with_name("user-bin")
        subprocess.run([self._python, "-m", "venv", "--without-pip", venv], check=True)
        (folder,) = (venv / "lib").iterdir()
        (folder / "site-packages/nvct.pth").write_text(f"{site}\n{packages}\n", encoding="utf-8")
        programs.mkdir()
        install(
            programs,
            built=Built(python=self._python, packages=str(site), cold=str(venv / "bin/python")),
        )
        self.shim = programs / "nvidia-container-runtime"

    def podman(
        self, shim_over: str, root: Path, words: Sequence[str], *, config: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a container with a folder of this user's as its root.

        Args:
            shim_over: the runtime behind the shim.
            root: the container's root; its files are given to the user.
            words: options of `podman run`, and then, behind "--", the command.
            config: text of config.toml; Podman hands no variables to its runtime.
        """
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(config, encoding="utf-8")
        for folder, folders, files in os.walk(root):
            for name in [".", *folders, *files]:
                os.lchown(os.path.join(folder, name), UID, UID)
        at = list(words).index("--")
        return self.call(
            shim_over, "--runtime", str(self.shim), "run", "--rm", "--network", "none",
            *words[:at], "--rootfs", str(root), *words[at + 1 :],
        )  # fmt: skip

    def call(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Podman as this user."""
        conf = self.home.with_name("rootless.conf")
        conf.write_text(
            '[containers]\npids_limit = 0\nnetns = "none"\n[engine]\n'
            'cgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
            encoding="utf-8",
        )
        store = [f"--root={self.home}/store-{name}", f"--runroot={self.home}/run-{name}"]
        env = {"CONTAINERS_CONF": str(conf), "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        return self.do("podman", *store, "--storage-driver", "vfs", *words, env=env)

    def do(
        self, program: str, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user."""
        return captured(
            [
                "setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups",
                "--inh-caps=-all", program, *words,
            ],
            env={
                "PATH": os.environ["PATH"], "HOME": str(self.home),
                "XDG_RUNTIME_DIR": str(self.home / "xdg"), **(env or {}),
            },
            cwd=self.home, errors="replace",
            timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def leave(self) -> None:
        """End the process that keeps this user's namespaces for the next podman."""
        for path in self.home.rglob("pause.pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
