# SPDX-License-Identifier: Apache-2.0
"""Programs that look for the driver by other means than ld.so.cache, run inside a simulated node.

`run_all` starts each image once in each layout; a container prints a line for each program: its
name, and the file of the driver that it found. RESULTS in the work folder holds them.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV
from nvct_sim import bundle
from tests.integration import inside
from tests.support import cdi_engine, debian_root, software_images
from tests.support.processes import captured
from tests.support.software_images import LIBDIR, MACHINE, PROBE

RESULTS = "software.json"
PEER_ENV, PACKAGES_ENV = "NVCT_SOFTWARE_PEER", "NVCT_SOFTWARE_PACKAGES"
WAYS = ("classic", "farm", "specification")
"""Layouts by the shim, and layout farm by a CDI specification that an engine applies."""
TIMEOUT_S = 300
ASKS = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
SCRIPT = Path(__file__).with_suffix(".sh")


def chosen_images() -> tuple[str, ...]:
    """Return the table's rows: those of this host's files, and in the full profile releases."""
    full = software_images.RELEASES if debian_root.FULL else ()
    return ("host", *software_images.SMALL, *full)


def run_all(work: Path) -> None:
    """Run every image in every way; results are {image: {way: {program: file}}}, or {"skipped"}."""
    lab = _Lab(work)
    found: dict[str, object] = {}
    for image in chosen_images():
        try:
            found[image] = lab.run(image)
        except ContainerNotPossibleError as error:
            found[image] = {"skipped": error.message}
    (work / RESULTS).write_text(json.dumps(found, indent=1), encoding="utf-8")


class _Lab:
    """Images and bundles, all in a tmpfs of this mount namespace."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.home = work / "software"
        self.home.mkdir()
        KERNEL.mount("software", str(self.home), "tmpfs", 0, "mode=755")
        for name in software_images.SMALL:
            software_images.build(name, self.home / name)
        peer = os.environ.get(PEER_ENV)
        self.peer = Path(peer) if peer else None

    def run(self, image: str) -> dict[str, dict[str, str]]:
        """Return what the programs of an image found, by way."""
        ways = (*WAYS, *(["incumbent"] if self.peer else []))
        return {way: self._run(image, way) for way in ways}

    def _run(self, image: str, way: str) -> dict[str, str]:
        folder = self.home / f"{image}-{way}"
        (folder / "rootfs").mkdir(parents=True)
        self._mount(software_images.lower(image, self.home), folder)
        if image in software_images.RELEASES:
            software_images.prepare(folder / "rootfs", image)
        packages = os.environ.get(PACKAGES_ENV)
        if packages and image == "host":
            subprocess.run(["cp", "-r", packages, folder / "rootfs/packages"], check=True)
        has_tools = image == "host" or image in software_images.RELEASES
        kind = "tools" if has_tools else "musl" if image == "musl" else "small"
        script = SCRIPT.read_text(encoding="utf-8")
        args = ["/bin/sh", "-c", script, "sh", kind, LIBDIR, MACHINE, PROBE]
        env = [*ASKS, *([f"LD_LIBRARY_PATH={LIBDIR}"] if image == "nix" else [])]
        mounts = [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}]
        document = bundle.config(args, env=env, mounts=mounts)
        if way == "specification":
            document = cdi_engine.inject(document, self._specification(), ["0"])
        (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
        said = self._start(folder, f"s{os.getpid()}-{image}-{way}", way)
        KERNEL.umount2(str(folder / "rootfs"), MNT_DETACH)
        shutil.rmtree(folder)
        rows = [line.split("\t") for line in said.splitlines() if line.count("\t") == 1]
        if not rows:
            raise AssertionError(f"{image}, {way}: {said}")
        return {name: value.strip() for name, value in rows}

    def _specification(self) -> str:
        """Return the path of a specification in layout farm; make it if it is missing."""
        path = self.home / "farm.json"
        if not path.exists():
            inside.configure(self.work)
            ctk = Path(sys.executable).with_name("nvidia-ctk")
            words = [str(ctk), "cdi", "generate", "--output", str(path), "--layout", "farm"]
            subprocess.run([*words, "--capabilities", "all,compat32"], check=True)
        return str(path)

    def _start(self, folder: Path, name: str, way: str) -> str:
        """Run a container to its end; return its output. The incumbent looks at `create` alone."""
        program, variables = self._runtime(way)
        env = {**os.environ, **variables}
        command = [program, "--root", str(self.home / "state")]
        output = folder / "output"
        with output.open("wb") as file:
            words = [*command, "create", "--bundle", str(folder), name]
            subprocess.run(words, env=env, check=False, timeout=TIMEOUT_S, stdout=file, stderr=file,
                           stdin=subprocess.DEVNULL)  # fmt: skip
        try:
            subprocess.run([*command, "start", name], env=env, check=False, timeout=TIMEOUT_S)
            end = time.monotonic() + TIMEOUT_S
            while time.monotonic() < end and self._is_running([*command, "state", name], env):
                time.sleep(0.05)
        finally:
            subprocess.run([*command, "delete", "--force", name], env=env, check=False)
        return output.read_text(encoding="utf-8", errors="replace")

    def _is_running(self, command: list[str], env: Mapping[str, str]) -> bool:
        done = captured(command, env=env)
        return done.returncode == 0 and json.loads(done.stdout)["status"] == "running"

    def _mount(self, lower: Path, folder: Path) -> None:
        for name in ("upper", "layer"):
            (folder / name).mkdir()
        options = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/layer"
        KERNEL.mount("software", str(folder / "rootfs"), "overlay", 0, options)

    def _runtime(self, way: str) -> tuple[str, Mapping[str, str]]:
        """Return the program of a way and the environment that it needs."""
        if way == "specification":
            return str(shutil.which("runc")), {}
        if way in WAYS:
            inside.configure(self.work, layout="auto" if way == "farm" else "classic")
            return inside.shim(), {}
        config = self.home / "peer.toml"
        config.write_text(
            f'[nvidia-container-cli]\nroot = "{inside.DRIVER_ROOT}"\n[nvidia-container-runtime]\n'
            f'runtimes = ["{shutil.which("runc")}"]\nmode = "auto"\n'
            f'[nvidia-ctk]\npath = "{self.peer}/nvidia-ctk"\n',
            encoding="utf-8",
        )
        variables = {"PATH": f"{self.peer}:{os.environ['PATH']}", CONFIG_ENV: str(config)}
        return f"{self.peer}/nvidia-container-runtime", variables
