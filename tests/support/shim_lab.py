# SPDX-License-Identifier: Apache-2.0
"""The shim on a host of plain files: a driver, CDI folders, a run directory, a fake runtime.

All files are below one folder with a path of fixed length, so that long messages are shortened at
the same place on every machine.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result

from nvct.compile import refresh
from nvct.config.model import Config
from nvct.container import settings
from nvct.container.plan import fingerprints
from nvct.container.plan.store import Store
from nvct.errors import NvctError
from nvct.linux import mountinfo
from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV, RUN_DIR_ENV
from nvct_sim import bundle
from nvct_sim.bundle import config as make_config
from tests.support import memory
from tests.support.host_tree import HostTree
from tests.support.hot import HOT_ENV
from tests.support.launcher import script
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
BOOT = "import sys;sys.path.insert(0,{packages!r});from nvct.container.shim.main import main;main({cold!r})"
PROGRAM = "nvidia-container-runtime"
PREFIX = "n" if memory.ROOT == memory.SHM else "nvct-"
"""Of each host's folder: its path is as long in memory as on a disk."""


def started(boot: str, cold: str) -> list[str]:
    """Return a launcher's words before the program's name; `boot` has {packages} and {cold}."""
    hot = os.environ.get(HOT_ENV)
    if hot:
        return [hot, "--cold", cold]
    return [PYTHON, "-I", "-S", "-c", boot.format(packages=str(REPOSITORY), cold=cold)]


@dataclass(frozen=True)
class Said:
    """The result of a run of the shim."""

    status: int
    stdout: str
    stderr: str


class Lab:
    """A host for the shim.

    Attributes:
        home: the folder of all files.
        host: the driver's files; empty until a test adds some.
        cold: the interpreter of the cold process; with another one the first create starts it.
        keys: lines of config.toml by table; `configure` writes them.
    """

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory.ROOT))
        self.host = HostTree(self.home)
        self.cold = sys.executable
        for name in ("bin", "cdi", "cdi2", "bundle", "bundle/rootfs", "proc", "sys", "dev"):
            (self.home / name).mkdir()
        (self.home / "run").mkdir(mode=0o700)
        script(self.home / "bin/runc", 'echo "runc $*"\n')
        self.hook = script(self.home / "bin/nvidia-cdi-hook", "exit 0\n")
        self.keys: dict[str, dict[str, object]] = {
            "nvidia-container-cli": {"root": str(self.home / "driver")},
            "nvidia-container-runtime": {"runtimes": [str(self.home / "bin/runc")]},
            "nvidia-container-runtime.modes.cdi": {
                "spec-dirs": [str(self.home / "cdi"), str(self.home / "cdi2")]
            },
            "nvct": {
                "dev-root": str(self.home),
                "proc-root": str(self.home / "proc"),
                "sys-root": str(self.home / "sys"),
                "hook-path": str(self.hook),
                "plain-nodes": True,
                "layout": "classic",
                "farm-dir": str(self.home / "farm"),
            },
        }
        self.configure()
        self.env = {
            "PATH": "/usr/bin:/bin",
            CONFIG_ENV: str(self.config_toml),
            RUN_DIR_ENV: str(self.run_dir),
        }

    @property
    def config_toml(self) -> Path:
        return self.home / "config.toml"

    @property
    def run_dir(self) -> Path:
        return self.home / "run"

    @property
    def bundle(self) -> Path:
        return self.home / "bundle"

    @property
    def config_json(self) -> Path:
        return self.bundle / "config.json"

    def remove(self) -> None:
        # On an overlay root, as in a container, a view is made of mounts.
        for mount in reversed(mountinfo.parse(Path("/proc/self/mountinfo").read_text())):
            if mount.target.startswith(f"{self.home}/"):
                KERNEL.umount2(mount.target, MNT_DETACH)
        bundle.remove(self.home)

    def configure(self, text: str = "", **runtime: object) -> None:
        """Write config.toml: a text, or the keys and more of nvidia-container-runtime."""
        self.keys["nvidia-container-runtime"].update(runtime)
        lines = [
            f"[{table}]\n" + "".join(f"{key} = {json.dumps(v)}\n" for key, v in keys.items())
            for table, keys in self.keys.items()
        ]
        self.config_toml.write_text(text or "\n".join(lines), encoding="utf-8")
        self.age(self.config_toml)

    def age(self, *paths: Path, seconds: float = 3600) -> None:
        """Set old times on files, so that their times can be trusted."""
        at = time.time_ns() - int(seconds * 10**9)
        for path in paths:
            os.utime(path, ns=(at, at))

    def driver(self, gpus: int = 2) -> HostTree:
        """Install and load a driver."""
        host = self.host.module().user_space()
        for index in range(gpus):
            host.gpu(index)
        return host

    def spec(
        self,
        name: str = "gpu.json",
        *,
        folder: str = "cdi",
        kind: str = "nvidia.com/gpu",
        devices: Mapping[str, Mapping[str, Any]] | None = None,
        common: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a CDI spec; a device is an environment variable unless its edits are given."""
        if devices is None:
            devices = {"0": {"env": ["GPU=0"]}, "1": {"env": ["GPU=1"]}}
        document = {
            "cdiVersion": "0.5.0",
            "kind": kind,
            "devices": [{"name": n, "containerEdits": edits} for n, edits in devices.items()],
            "containerEdits": common or {"env": ["COMMON=1"]},
        }
        path = self.home / folder / name
        path.write_text(json.dumps(document), encoding="utf-8")
        self.age(path, path.parent)
        return path

    def asks(
        self, *env: str, annotations: Mapping[str, str] | None = None, **more: object
    ) -> None:
        """Write the config.json of a container with a request."""
        document = make_config(["true"], env=env, annotations=annotations)
        self.config_json.write_text(json.dumps({**document, **more}), encoding="utf-8")

    def keep(self, name: str, document: Mapping[str, object]) -> None:
        """Store a document in the run directory, as the shim does."""
        store = Store(str(self.run_dir))
        try:
            assert store.write_json(name, document)
        finally:
            store.close()

    def kept(self, name: str) -> dict[str, Any]:
        """Return a document of the run directory."""
        store = Store(str(self.run_dir))
        try:
            found = store.read_json(name)
        finally:
            store.close()
        assert found is not None
        return found

    def create(
        self, *flags: str, program: str = PROGRAM, env: Mapping[str, str] | None = None
    ) -> Said:
        """Run `create` as an engine does; plans are there before the first, unless a test has a cold of its own."""
        is_fresh = self.run_dir.is_dir() and not os.listdir(self.run_dir)
        if self.cold == sys.executable and not env and is_fresh:
            self.compile()
        return self.shim([*flags, "create", "--bundle", str(self.bundle), "x"], program, env)

    def compile(self) -> None:
        """Store what the cold process would, without a process: 10 instead of 130 ms of CPU."""
        folders = [self.home / "cdi", self.home / "cdi2"]
        with contextlib.suppress(NvctError):
            config = Config.from_dict(refresh.config(str(self.config_toml)))
            store = Store(str(self.run_dir))
            fact = fingerprints.take_file(str(self.config_toml), time.time_ns())
            settings._store(store, str(self.config_toml), config, fact)
            store.close()
            if any(os.listdir(folder) for folder in folders):
                refresh.registry_plan(str(self.config_toml), str(self.run_dir))
            refresh.own_plan(str(self.config_toml), str(self.run_dir))

    def shim(
        self,
        args: Sequence[str],
        program: str = PROGRAM,
        env: Mapping[str, str] | None = None,
        data: str = "",
    ) -> Said:
        """Run the shim as the launcher starts it, with data on stdin."""
        done = captured(
            [*started(BOOT, self.cold), program, *args],
            env={**self.env, **(env or {})},
            cwd=self.home,
            errors="surrogateescape",
            timeout=60,
            input=data,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def invoke(self, program: str, *words: str | Path, stdin: Any = None, **env: str) -> Result:
        """Run a program of the command line in this process; its exception is in the result."""
        from tests.support.commands import invoke

        return invoke(program, [*map(str, words)], env={**self.env, **env}, input=stdin)

    def document(self) -> dict[str, Any]:
        """Return the current config.json."""
        found: dict[str, Any] = json.loads(self.config_json.read_text(encoding="utf-8"))
        return found

    def container_env(self) -> list[str]:
        """Return the container's variables without PATH."""
        env: list[str] = self.document()["process"]["env"]
        return [entry for entry in env if not entry.startswith("PATH=")]
