# SPDX-License-Identifier: Apache-2.0
"""Build the image: an OCI archive, and its bill of materials beside it. No network, no Docker.

::

    .venv/bin/python packaging/image/build.py --base FILE --bundle FOLDER --wheels FOLDER

One set of layers: a small Debian; the bundle's Python and libraries; the agent's wheels; nvct.
Each program has an image with its ENTRYPOINT. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
sys.path[1:1] = [str(HERE), str(HERE.parent / "bundle")]

import archive  # noqa: E402
import layers  # noqa: E402
import oci  # noqa: E402
import sbom  # noqa: E402
from layers import Entry, ImageError, Layer  # noqa: E402

NAME = "nvct"
BUNDLE = "opt/nvct"
AGENT = "usr/lib/nvct-agent"
"""The agent's wheels: outside of the bundle, which is copied to hosts."""
SBOM = "usr/share/nvct/sbom.spdx.json"
STATUS = "var/lib/dpkg/status"
UNPACKED_LIMIT = 150_000_000
"""Bytes of all layers."""
UNUSED = re.compile(
    r"(var/(log|cache)|var/lib/apt|var/lib/dpkg/[^/]*-old|etc/(hostname|machine-id|resolv\.conf)"
    r"|run|tmp|dev|proc|sys|etc/apt)(/.*)?|etc/.*-"
)
"""Of the base: what differs from one build to the next, and what an engine mounts."""
MOUNT_POINTS = {"dev": 0o755, "proc": 0o755, "run": 0o755, "sys": 0o755, "tmp": 0o1777}
LINKS = {
    "nvct": f"/{BUNDLE}/bin/nvct",
    "nvidia-ctk": f"/{BUNDLE}/bin/nvidia-ctk",
    "nvidia-toolkit": "nvidia-ctk-installer",
}
"""In /usr/bin, besides the programs of the folder `programs`: the incumbent's names."""
GPUS = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "utility",
    "NVIDIA_DISABLE_REQUIRE": "true",
}
"""By the runtime nvidia, a container that serves GPUs gets NVML and the devices."""
PROGRAMS = {
    "toolkit": ("Installs nvct on its host", ["/usr/bin/nvidia-ctk-installer"],
                {"NVIDIA_VISIBLE_DEVICES": "void"}),
    "agent": ("Serves the GPUs of a Kubernetes node", ["/usr/bin/nvct", "agent"], GPUS),
    "device-plugin": ("Offers GPUs to the kubelet", ["/usr/bin/nvidia-device-plugin"], GPUS),
    "dcgm-exporter": ("Serves metrics of GPUs", ["/usr/bin/dcgm-exporter"], GPUS),
    "gpu-feature-discovery": ("Labels a Kubernetes node with what its GPUs are",
                              ["/usr/bin/gpu-feature-discovery"], GPUS),
    "mig-manager": ("Makes the MIG devices that a Node's label names",
                    ["/usr/bin/nvidia-mig-manager"], GPUS),
    "gpu-kubelet-plugin": ("Offers GPUs by dynamic resource allocation",
                           ["/usr/bin/gpu-kubelet-plugin"], GPUS),
}  # fmt: skip
"""By tag: what it does, its ENTRYPOINT and its variables."""
LOADED = "import bcrypt, ssl, grpc.aio, lightkube.core.async_client, google.protobuf.message"
"""What the agent loads of others' compiled modules."""


def main() -> None:
    """Build the image, and print its path and sizes.

    Raises:
        SystemExit: an input is missing or wrong; nothing is written.
    """
    parser = argparse.ArgumentParser(description="Build the image.")
    parser.add_argument("--base", type=Path, required=True, help="tar, as base.sh makes it")
    parser.add_argument("--bundle", type=Path, required=True, help="unpacked, by make bundle")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of requirements.txt")
    parser.add_argument("--out", type=Path, default=SOURCES / "dist", help="folder to write into")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="nvct-image-") as work:
            path, made = build(
                options.base, options.bundle, options.wheels, options.out, Path(work)
            )
    except ImageError as error:
        raise SystemExit(f"build.py: {error}") from error
    for layer in made:
        print(f"{layer.comment}: {layer.unpacked / 1e6:.1f} MB, {layer.size / 1e6:.1f} packed")
    print(f"all layers: {sum(one.unpacked for one in made) / 1e6:.1f} MB")
    print(path)


def build(
    base: Path, bundle: Path, wheels: Path, out: Path, work: Path
) -> tuple[Path, list[Layer]]:
    """Build the image with a work folder; return its path and layers.

    Raises:
        ImageError: an input is missing or wrong; nothing is written.
    """
    version, site = check_bundle(bundle)
    when = archive.epoch(SOURCES)
    agent = work / "agent"
    install_wheels(wheels, agent)
    add_ssl(agent)
    compile_modules(agent, bundle)
    base_entries = of_base(base)
    components = components_of(base_entries, bundle, agent)
    document = sbom.document(version, components, when)
    pth = Entry(f"{BUNDLE}/{site}/nvct-agent.pth", content=f"/{AGENT}\n".encode())

    def is_nvct(place: str) -> bool:
        inside = place.startswith((f"{site}/nvct/", f"{site}/nvct_sim/", "bin/", "libexec/nvct-"))
        return inside or not place.startswith(("lib/", "libexec/"))

    contents = {
        "Debian": base_entries,
        "Python and libraries": layers.of_folder(bundle, BUNDLE, lambda p: not is_nvct(p)),
        "gRPC and the Kubernetes client": [
            *layers.of_folder(agent, AGENT), pth, *layers.folders_of([pth.path])
        ],
        "nvct": [*layers.of_folder(bundle, BUNDLE, is_nvct), *programs(document)],
    }  # fmt: skip
    made = [
        layers.write(entries, work / f"{number}.tar.gz", comment)
        for number, (comment, entries) in enumerate(contents.items())
    ]
    if (total := sum(layer.unpacked for layer in made)) > UNPACKED_LIMIT:
        raise ImageError(f"the layers have {total} bytes, more than {UNPACKED_LIMIT}")
    start(made, work / "root")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{bundle.name}.oci.tar"
    oci.write(path, NAME, images(version), made, machine=platform.machine(), when=when)
    (out / f"{bundle.name}.spdx.json").write_text(document, encoding="utf-8")
    return path, made


def check_bundle(bundle: Path) -> tuple[str, str]:
    """Return the version of a bundle, and its folder of modules.

    Raises:
        ImageError: it is none.
    """
    sites = sorted(bundle.glob("lib/python3.*/dist-packages/nvct/version.py"))
    found = sites and re.search(r'^__version__ = "(.*)"', sites[0].read_text(), re.MULTILINE)
    if not found or not os.access(bundle / "bin/nvct-python", os.X_OK):
        raise ImageError(f"{bundle} is no unpacked bundle: run `make bundle` and unpack that")
    return found[1], str(sites[0].parents[1].relative_to(bundle))


def install_wheels(wheels: Path, site: Path) -> None:
    """Install the agent's wheels.

    Raises:
        ImageError: a wheel is missing or is another one.
    """
    if not wheels.is_dir():
        raise ImageError(f"there is no folder {wheels}: make image downloads the wheels into it")
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-index", f"--find-links={wheels}", "--no-deps", "--no-compile", "--require-hashes",
        "--only-binary=:all:", f"--target={site}", f"--requirement={HERE / 'requirements.txt'}",
    )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)  # they name the Python that installs them
    for folder in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (folder / name).unlink(missing_ok=True)


def add_ssl(site: Path) -> None:
    """Copy Python's module for TLS, which the bundle lacks; its OpenSSL is the base's libssl3.

    Raises:
        ImageError: the Python that builds the image has no such module in a file.
    """
    spec = importlib.util.find_spec("_ssl")
    if spec is None or not spec.origin or not os.path.isfile(spec.origin):
        raise ImageError(f"{sys.executable} has no file of the module _ssl: build with Debian's")
    shutil.copyfile(spec.origin, site / os.path.basename(spec.origin))


def compile_modules(site: Path, bundle: Path) -> None:
    """Compile the agent's modules with the bundle's Python, and load what the agent loads.

    Raises:
        ImageError: a module does not fit the bundle's Python.
    """
    code = (
        "import compileall,py_compile,sys;"
        "mode=py_compile.PycInvalidationMode.UNCHECKED_HASH;"
        "compileall.compile_dir(sys.argv[1],quiet=2,stripdir=sys.argv[1],"
        f"prependdir='/{AGENT}',invalidation_mode=mode);"
        f"sys.path.insert(0,sys.argv[1]);{LOADED}"
    )
    run(str(bundle / "bin/nvct-python"), "-B", "-c", code, str(site))


def start(made: list[Layer], root: Path) -> None:
    """Start each program of the image once, in a root that its layers make.

    Raises:
        ImageError: one does not start: a library of the bundle, which is this machine's, does not
            fit the base; or no root can be entered here.
    """
    root.mkdir()
    for layer in made:
        run("tar", "--no-same-owner", "-xzf", str(layer.file), "-C", str(root))
    enter = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    commands = [[*entrypoint, "--help"] for _, entrypoint, _ in PROGRAMS.values()]
    for command in (*commands, [f"/{BUNDLE}/bin/nvct-python", "-c", LOADED]):
        run(*enter, "chroot", str(root), *command)


def of_base(base: Path) -> list[Entry]:
    """Return the entries of the base.

    Raises:
        ImageError: it is no root file system of Debian.
    """
    entries = layers.of_tar(base, lambda path: not UNUSED.fullmatch(path))
    if not any(entry.path == STATUS for entry in entries):
        raise ImageError(f"{base} has no /{STATUS}: it is no root file system of Debian")
    folders = (Entry(path, b"5", mode) for path, mode in MOUNT_POINTS.items())
    return [*entries, *folders]


def components_of(base: list[Entry], bundle: Path, agent: Path) -> list[sbom.Component]:
    """Return what is in the image besides nvct."""
    by_path = {entry.path: entry.content for entry in base if isinstance(entry.content, bytes)}
    found = sbom.of_dpkg(by_path[STATUS].decode(), _release(by_path))
    return [*found, *sbom.of_folder(bundle), *sbom.of_wheels(agent)]


def programs(document: str) -> list[Entry]:
    """Return the programs in /usr/bin and the bill of materials."""
    entries = [Entry(SBOM, content=document.encode())]
    entries += [
        Entry(f"usr/bin/{file.name}", mode=0o755, content=file)
        for file in sorted((HERE / "programs").iterdir())
    ]
    entries += [Entry(f"usr/bin/{n}", b"2", 0o777, target) for n, target in LINKS.items()]
    return entries + layers.folders_of([SBOM])


def images(version: str) -> list[oci.Image]:
    """Return the image of each program."""
    prefix = "org.opencontainers.image"
    return [
        oci.Image(
            tag=tag, entrypoint=entrypoint, env=env,
            labels={
                f"{prefix}.title": f"nvct {tag}",
                f"{prefix}.description": text,
                f"{prefix}.version": version,
                f"{prefix}.licenses": "Apache-2.0",
            },
        )
        for tag, (text, entrypoint, env) in PROGRAMS.items()
    ]  # fmt: skip


def _release(files: dict[str, bytes]) -> str:
    text = files.get("usr/lib/os-release", b"").decode()
    found = re.search(r'^VERSION_ID="?(\d+)', text, re.MULTILINE)
    return found[1] if found else ""


def run(*command: str) -> None:
    """Run a program.

    Raises:
        ImageError: it fails.
    """
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ImageError(f"{os.path.basename(command[0])} failed: {' '.join(lines[-3:])}")


if __name__ == "__main__":
    main()
