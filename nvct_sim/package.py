# SPDX-License-Identifier: Apache-2.0
"""The user space of a simulated driver: the files that a driver package installs.

Names, SONAMEs, dependencies, links and folders are those of Ubuntu's packages of drivers 580 to
615 (tests/hosts/real), with additions from NVIDIA's archive. The files are small shared objects
without code, except those that nvct_sim.native builds, such as the NVML library and nvidia-smi.
The loaders of GLVND and OpenCL are included, because the driver's packages depend on them.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from nvct.linux import ldcache
from nvct_sim.elf_writer import MACHINES, shared_object

STATE_LIBRARY = "libnvidia-simstate"
MERGED = ("bin", "sbin", "lib", "lib64")  # Folders that are links to those of /usr


class Library(NamedTuple):
    """A library of the package."""

    name: str  # path below the library folder, up to ``.so``
    # rest of the SONAME after ``.so``, "V" for the driver version, None for no SONAME
    soname: str | None
    # rest of the file name after ``.so.``, "V" for the driver version, "" for none
    version: str = "V"
    dev: bool = False  # whether a link ends in ``.so``, for linking programs
    needed: tuple[str, ...] = ()  # DT_NEEDED without libc, "V" for the driver version
    since: int = 0  # the first driver branch with this library, 0 for all

    def is_in(self, version: str) -> bool:
        """Report whether a driver version has the library."""
        return _branch(version) >= self.since


def _branch(version: str) -> int:
    return int(version.partition(".")[0])


_GLSI = ("libnvidia-glsi.so.V",)
_GLCORE = ("libnvidia-tls.so.V", "libnvidia-glcore.so.V")
_GPUCOMP = "libnvidia-gpucomp.so.V"
_WAYLAND = ("libwayland-client.so.0", "libwayland-server.so.0", "libdrm.so.2")
# fmt: off
LIBRARIES = (
    Library("libcuda.so", ".1", dev=True),
    Library("libcudadebugger.so", ".1"),
    Library("libnvcuvid.so", ".1", dev=True),
    Library("libnvidia-allocator.so", ".1", dev=True),
    Library("libnvidia-api.so", ".1", "1"),
    Library("libnvidia-cfg.so", ".1", dev=True),
    Library("libnvidia-egl-gbm.so", ".1", "1.1.3", needed=("libgbm.so.1", "libdrm.so.2")),
    Library("libnvidia-egl-wayland.so", ".1", "1.1.20", needed=_WAYLAND),
    Library("libnvidia-egl-wayland2.so", ".1", "1.0.1", needed=_WAYLAND, since=595),
    Library("libnvidia-egl-xcb.so", ".1", "1.0.5", needed=("libxcb.so.1", "libgbm.so.1")),
    Library("libnvidia-egl-xlib.so", ".1", "1.0.5", needed=("libX11.so.6", "libX11-xcb.so.1")),
    Library("libnvidia-eglcore.so", ".V", needed=(*_GLSI, _GPUCOMP)),
    Library("libnvidia-encode.so", ".1", dev=True, needed=("libnvcuvid.so.1",)),
    Library("libnvidia-fbc.so", ".1", dev=True),
    Library("libnvidia-fmdrv.so", ".1", since=615),
    Library("libnvidia-glcore.so", ".V", needed=("libnvidia-tls.so.V", _GPUCOMP)),
    Library("libnvidia-glsi.so", ".V"),
    Library("libnvidia-glvkspirv.so", ".V"),
    Library("libnvidia-gpucomp.so", ".V"),
    Library("libnvidia-imex.so", ".1", since=615),
    Library("libnvidia-ngx.so", ".1"),
    Library("libnvidia-nvvm.so", ".4", dev=True),
    Library("libnvidia-nvvm70.so", ".4", "4", dev=True),
    Library("libnvidia-opencl.so", ".1"),
    Library("libnvidia-opticalflow.so", ".1", dev=True, needed=("libnvcuvid.so.1",)),
    Library("libnvidia-pkcs11-openssl3.so", ".V"),
    Library("libnvidia-pkcs11.so", ".V"),
    Library("libnvidia-present.so", ".V", needed=("libcuda.so.1",)),
    Library("libnvidia-ptxjitcompiler.so", ".1", dev=True),
    Library("libnvidia-rtcore.so", ".V"),
    Library("libnvidia-sandboxutils.so", ".1"),
    Library("libnvidia-tileiras.so", ".V", since=595),
    Library("libnvidia-tls.so", ".V"),
    Library("libnvidia-vksc-core.so", ".1", needed=_GLSI),
    Library("libnvidia-wayland-client.so", ".V"),
    Library("libnvoptix.so", ".1"),
    Library("libEGL_nvidia.so", ".0", needed=_GLSI),
    Library("libGLESv1_CM_nvidia.so", ".1"),
    Library("libGLESv2_nvidia.so", ".2"),
    Library("libGLX_nvidia.so", ".0", needed=(*_GLSI, *_GLCORE)),
    Library("vdpau/libvdpau_nvidia.so", ".1", dev=True),
    Library("nvidia/xorg/libglxserver_nvidia.so", None, dev=True, needed=_GLCORE),
    Library("nvidia/xorg/nvidia_drv.so", None, ""),
)
# libglvnd and ocl-icd; names and versions of Debian 12.
LOADERS = (
    Library("libGLdispatch.so", ".0", "0.0.0"),
    Library("libGLX.so", ".0", "0.0.0", needed=("libGLdispatch.so.0",)),
    Library("libGL.so", ".1", "1.7.0", needed=("libGLdispatch.so.0", "libGLX.so.0")),
    Library("libOpenGL.so", ".0", "0.0.0", needed=("libGLdispatch.so.0",)),
    Library("libEGL.so", ".1", "1.1.0", needed=("libGLdispatch.so.0",)),
    Library("libGLESv1_CM.so", ".1", "1.2.0", needed=("libGLdispatch.so.0",)),
    Library("libGLESv2.so", ".2", "2.1.0", needed=("libGLdispatch.so.0",)),
    Library("libOpenCL.so", ".1", "1.0.0"),
)
WAIT_FOR_SIGNAL = """\
exec </dev/null >/dev/null 2>&1
trap 'kill $!; exit' INT TERM
while :; do sleep 3600 & wait; done
"""
"""The end of a script that runs as a daemon and does nothing."""
# From the packages nvidia-fabricmanager and libnvidia-nscq.
SWITCH_LIBRARIES = (
    Library("libnvfm.so", ".1", "1"),
    Library("libnvidia-nscq.so", ".2"),
)
COMPAT32 = (
    "libcuda.so", "libnvcuvid.so", "libnvidia-allocator.so", "libnvidia-egl-gbm.so",
    "libnvidia-egl-xcb.so", "libnvidia-egl-xlib.so", "libnvidia-eglcore.so",
    "libnvidia-encode.so", "libnvidia-fbc.so", "libnvidia-glcore.so", "libnvidia-glsi.so",
    "libnvidia-glvkspirv.so", "libnvidia-gpucomp.so", "libnvidia-ml.so", "libnvidia-nvvm.so",
    "libnvidia-opencl.so", "libnvidia-opticalflow.so", "libnvidia-ptxjitcompiler.so",
    "libnvidia-tls.so", "libEGL_nvidia.so", "libGLESv1_CM_nvidia.so", "libGLESv2_nvidia.so",
    "libGLX_nvidia.so", "vdpau/libvdpau_nvidia.so",
)
# fmt: on
BINARIES = (
    "nvidia-bug-report.sh",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-modprobe",
    "nvidia-ngx-updater",
    "nvidia-pcc",
    "nvidia-persistenced",
    "nvidia-powerd",
    "nvidia-settings",
    "nvidia-sleep.sh",
    "nvidia-smi",
    "nvidia-xconfig",
)  # fmt: skip
EGL_PLATFORMS = (
    "09_nvidia_wayland2", "10_nvidia_wayland", "15_nvidia_gbm", "20_nvidia_xcb", "20_nvidia_xlib",
)  # fmt: skip
FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")
UCODES = ("ucodes_ga10x.bin", "ucodes_tu10x.bin")
UCODES_SINCE = 615  # a driver branch, as Library.since


def _documents(arch: str, version: str) -> Iterator[tuple[str, str]]:
    icd = {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.312"}
    layer = {
        "name": "VK_LAYER_NV_optimus", "type": "INSTANCE", "api_version": "1.4.312",
        "library_path": "libGLX_nvidia.so.0", "implementation_version": "1",
        "description": "NVIDIA Optimus layer",
        "enable_environment": {"__NV_PRIME_RENDER_OFFLOAD": "1"},
        "disable_environment": {"DISABLE_LAYER_NV_OPTIMUS_1": ""},
    }  # fmt: skip
    share = "usr/share"

    def document(content: Mapping[str, object]) -> str:
        return json.dumps({"file_format_version": "1.0.0", **content}, indent=4) + "\n"

    yield f"{share}/vulkan/icd.d/nvidia_icd.json", document({"ICD": icd})
    yield f"{share}/vulkan/icd.d/nvidia_icd.{arch}.json", document({"ICD": icd})
    yield f"{share}/vulkan/implicit_layer.d/nvidia_layers.json", document({"layers": [layer]})
    safety = {"library_path": "libnvidia-vksc-core.so.1", "api_version": "1.0.15"}
    yield f"{share}/vulkansc/icd.d/nvidia_icd_vksc.json", document({"ICD": safety})
    egl = {"ICD": {"library_path": "libEGL_nvidia.so.0"}}
    yield f"{share}/glvnd/egl_vendor.d/10_nvidia.json", document(egl)
    names = {library.name for library in LIBRARIES if library.is_in(version)}
    for name in EGL_PLATFORMS:
        if f"libnvidia-egl-{name.rpartition('_')[2]}.so" not in names:
            continue
        library = f"libnvidia-egl-{name.rpartition('_')[2]}.so.1"
        platform = {"ICD": {"library_path": library}}
        yield f"{share}/egl/egl_external_platform.d/{name}.json", document(platform)
    yield f"{share}/nvidia/nvoptix.bin", f"simulated OptiX denoiser weights {version}\n"
    yield f"{share}/nvidia/nvidia-application-profiles-{version}-rc", '{"rules": []}\n'
    outputs = 'Section "OutputClass"\n    Identifier "nvidia"\n    Driver "nvidia"\nEndSection\n'
    yield f"{share}/X11/xorg.conf.d/nvidia-drm-outputclass.conf", outputs
    yield "etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n"


def library_dir(machine: str) -> str:
    """Return the library folder relative to the driver root, with Debian's name."""
    return f"usr/lib/{MACHINES[machine].triplet}"


def skeleton(root: Path) -> None:
    """Make the folders of a driver root, with a merged /usr as in current distributions."""
    for name in (*(f"usr/{merged}" for merged in MERGED), "etc", "dev", "proc", "run", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")
    (root / "var").mkdir()
    (root / "var/run").symlink_to("../run")


def install(
    root: Path, version: str, *, machine: str, state: Path, native: Mapping[str, Path] | None
) -> None:
    """Install the user space of one driver version into a driver root.

    The state file is hard-linked beside the NVML library; `native` has the built programs and
    libraries by name, None to install files without code.
    """
    folder = root / library_dir(machine)
    libraries = [library for library in LIBRARIES if library.is_in(version)]
    for library in (*libraries, *LOADERS):
        built = native.get(library.name) if native else None
        data = built.read_bytes() if built else None
        _install_library(folder, library, version, machine, data)
    nvml = Library("libnvidia-ml.so", ".1", dev=True)
    if machine == "x86_64":
        for library in (*libraries, nvml):
            if library.name in COMPAT32:
                _install_library(root / library_dir("i386"), library, version, "i386")
    data = native[nvml.name].read_bytes() if native else None
    _install_library(folder, nvml, version, machine, data)
    os.link(state, folder / f"{STATE_LIBRARY}.so.{version}")
    _replace_link(folder / f"{STATE_LIBRARY}.so.1", f"{STATE_LIBRARY}.so.{version}")
    (folder / "gbm").mkdir(exist_ok=True)
    _replace_link(folder / "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    for name in BINARIES:
        mode = 0o4755 if name == "nvidia-modprobe" else 0o755
        built = native.get(name) if native else None
        script = f"#!/bin/sh\necho '{name}: part of a simulated driver {version}'\n"
        data = built.read_bytes() if built else script.encode()
        _write(root / "usr/bin" / name, data, mode)
    for name in (*FIRMWARE, *(UCODES if _branch(version) >= UCODES_SINCE else ())):
        content = f"{name} {version}\n".encode().ljust(4096, b"\0")
        _write(root / "usr/lib/firmware/nvidia" / version / name, content)
    for path, text in _documents(machine, version):
        _write(root / path, text.encode())
    _make_socket(root / "run/nvidia-persistenced/socket")
    write_cache(root, machine)


def install_extras(root: Path, version: str, extras: Mapping[str, int], *, machine: str) -> None:
    """Install the files for devices other than GPUs (profiles/nodes.toml)."""
    if extras.get("nvswitch"):
        folder = root / library_dir(machine)
        for library in SWITCH_LIBRARIES:
            _install_library(folder, library, version, machine)
        script = f"#!/bin/sh\n# Part of a simulated driver {version}.\n"
        script += f"[ $# = 0 ] || exec echo 'Fabric Manager version is : {version}'\n"
        script += WAIT_FOR_SIGNAL
        _write(root / "usr/bin/nv-fabricmanager", script.encode(), 0o755)
        _make_socket(root / "run/nvidia-fabricmanager/socket")
        write_cache(root, machine)
    if extras.get("nvidia_fs"):
        _write(root / "etc/cufile.json", b'{"logging": {"level": "ERROR"}}\n')
        (root / "run/udev/data").mkdir(parents=True, exist_ok=True)


def remove(root: Path, version: str, *, machine: str) -> None:
    """Remove the files that only this version installed, as a package upgrade does."""
    folders = [root / library_dir(machine), root / library_dir("i386")]
    for folder in folders:
        for path in [*folder.rglob(f"*.so.{version}")] if folder.is_dir() else []:
            path.unlink()
        for path in [*folder.rglob("*.so*")] if folder.is_dir() else []:
            if not path.exists():  # a link of a library that the other version lacks
                path.unlink()
    firmware = root / "usr/lib/firmware/nvidia" / version
    for path in [*firmware.iterdir()] if firmware.is_dir() else []:
        path.unlink()
    with contextlib.suppress(FileNotFoundError):
        firmware.rmdir()
    profile = f"usr/share/nvidia/nvidia-application-profiles-{version}-rc"
    (root / profile).unlink(missing_ok=True)


def cache_entries(root: Path, machine: str) -> list[tuple[str, str]]:
    """Return (name, path) of each library, as ldconfig lists them."""
    folder = root / library_dir(machine)
    libraries = [path for path in folder.iterdir() if path.name.startswith("lib")]
    # As in ldconfig, a file with links is listed only by the names of the links.
    linked = {os.readlink(path) for path in libraries if path.is_symlink()}
    names = sorted(path.name for path in libraries if path.is_symlink() or path.name not in linked)
    return [(name, f"/{library_dir(machine)}/{name}") for name in names]


def write_cache(root: Path, machine: str) -> None:
    """Write the driver root's ld.so.cache for the libraries present in it."""
    data = ldcache.merge(None, cache_entries(root, machine), machine=machine)
    _write(root / "etc/ld.so.cache", data)


def _install_library(
    folder: Path, library: Library, version: str, machine: str, data: bytes | None = None
) -> None:
    base = library.name.rpartition("/")[2]
    file = folder / library.name
    suffix = library.version.replace("V", version)
    target = file.with_name(f"{base}.{suffix}" if suffix else base)
    soname = None if library.soname is None else base + library.soname.replace("V", version)
    if data is None:
        needed = [name.replace("V", version) for name in library.needed]
        symbols = {"nvct_sim_version": version.encode()}
        needed = [*needed, "libc.so.6"]
        data = shared_object(machine, soname=soname, needed=needed, symbols=symbols)
    _write(target, data)
    if soname and soname != target.name:
        _replace_link(file.with_name(soname), target.name)
    if library.dev:
        _replace_link(file, soname or target.name)


def _make_socket(path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True)
        os.mknod(path, stat.S_IFSOCK | 0o666)  # a tree's path may be too long for bind(2)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file and rename it, as package managers do; never write to the old inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.rename(path)


def _replace_link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
