# SPDX-License-Identifier: Apache-2.0
"""Containers of a caller that runs no hooks, inside a simulated node."""

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from nvct_sim import bundle
from nvct_sim.elf_writer import MACHINES
from nvct_sim.rootfs import LOADERS
from tests.integration import inside
from tests.integration.inside import UUID
from tests.support import cdi_engine, images, software_images

TRIPLET = MACHINES[images.MACHINE].triplet
OWN = "/opt/own/lib"
"""A folder of the image's that its loader knows by a file alone: ld.so.cache, or musl's path."""
PROGRAM = (
    "#include <stdio.h>\nconst char *own(void);\nint main(void) { return puts(own()) < 0; }\n"
)
LIBRARY = 'const char *own(void) { return "own"; }\n'
SPEC = "/var/run/cdi/no-hooks.json"
SCRIPT = """\
/usr/bin/own; echo "$LD_LIBRARY_PATH"; ls /dev | grep -c 'nvidia[0-9]'
nvidia-smi -L && load-library libcuda.so.1 && load-library libcuda.so
"""


def _compile(compiler: str, source: str, output: Path, *flags: str) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    words = [compiler, "-x", "c", "-", "-o", str(output), *flags]
    subprocess.run(words, input=source, text=True, check=True)


def build(kind: str, root: Path) -> None:
    """Make an image with a program whose library is where only the image's own file leads."""
    software_images.build(kind, root)
    own = root / OWN[1:]
    compiler = "musl-gcc" if kind == "musl" else "gcc"
    _compile(compiler, LIBRARY, own / "libown.so", "-shared", "-fPIC", "-Wl,-soname,libown.so")
    _compile(compiler, PROGRAM, root / "usr/bin/own", f"-L{own}", "-lown")
    if kind == "musl":
        path = root / f"etc/ld-musl-{images.MACHINE}.path"
        path.write_text(f"/lib\n/usr/lib\n{OWN}\n", encoding="ascii")
        return
    (root / "etc/ld.so.conf.d/own.conf").write_text(f"{OWN}\n", encoding="ascii")
    ldconfig = root / "usr/sbin/ldconfig"
    subprocess.run([ldconfig, "-r", root, "-X"], check=True, capture_output=True)
    if kind == "rhel":
        _build_in_lib64(root / LOADERS[images.MACHINE][1:])


def _build_in_lib64(loader: Path) -> None:
    """Give a loader of Debian the built-in folders of Red Hat's, written at the same length."""
    data = loader.read_bytes()
    for debian, redhat in (
        (f"/usr/lib/{TRIPLET}/", "/usr/lib64/"),
        (f"/lib/{TRIPLET}/", "/lib64/"),
    ):
        more = len(debian) - len(redhat)
        same_length = redhat + "/" * (more % 2) + "./" * (more // 2)
        assert debian.encode() + b"\0" in data
        data = data.replace(debian.encode() + b"\0", same_length.encode() + b"\0")
    loader.write_bytes(data)


def generate(choice: str) -> str:
    """Write a specification without hooks, and return its text."""
    ctk = Path(sys.executable).with_name("nvidia-ctk")
    words = [str(ctk), "cdi", "generate", f"--no-hooks={choice}", "--output", SPEC]
    subprocess.run(words, check=True)
    return Path(SPEC).read_text(encoding="utf-8")


def run(work: Path, kind: str, choice: str, *, read_only: bool = False) -> list[str]:
    """Run SCRIPT in an image by runc, with GPU 0 of a specification; return the lines."""
    inside.configure(work)
    assert "createContainer" not in generate(choice)
    folder = work / f"{kind}-{choice}-{read_only}"
    build(kind, folder / "rootfs")
    document = bundle.config(["/bin/sh", "-c", SCRIPT], env=["LD_LIBRARY_PATH=/opt/images/own"])
    document["root"]["readonly"] = read_only
    document = cdi_engine.inject(document, SPEC, ["0"])
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    before = _state(folder / "rootfs")
    done = inside.run(work, folder, shutil.which("runc"))
    assert _state(folder / "rootfs") == before
    return done.stdout.splitlines()


def _state(root: Path) -> list[tuple[str, str]]:
    """Return the digests of an image's files; a runtime adds empty ones to mount on."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size)
    return [(str(path), sha256(path.read_bytes()).hexdigest()) for path in files]


def finds_the_driver(lines: list[str], folder: str) -> None:
    """Assert that the image's own program ran, and the driver's programs and libraries are there."""
    own, variable, nodes, listed, *loaded = lines
    assert (own, variable, nodes) == ("own", "/opt/images/own", "1"), lines
    assert UUID.search(listed), lines
    folders = {os.path.normpath(os.path.dirname(path)).removeprefix("/usr") for path in loaded}
    assert folders == {folder}, lines  # as /lib is /usr/lib


def a_debian_image(work: Path) -> None:
    folder = f"/lib/{TRIPLET}"
    finds_the_driver(run(work, "debian", "debian"), folder)
    finds_the_driver(run(work, "debian", "both", read_only=True), folder)


def a_red_hat_image(work: Path) -> None:
    finds_the_driver(run(work, "rhel", "redhat"), "/lib64")
    finds_the_driver(run(work, "rhel", "both"), "/lib64")
    lines = run(work, "rhel", "debian")
    assert lines[:3] == ["own", "/opt/images/own", "1"], lines
    assert not UUID.search("".join(lines)), "the loader searches Debian's folders: a bad image"


def a_musl_image(work: Path) -> None:
    """No program of the driver can run there; the image's own does, and has the GPU's node."""
    assert run(work, "musl", "both")[:3] == ["own", "/opt/images/own", "1"]
