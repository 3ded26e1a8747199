# SPDX-License-Identifier: Apache-2.0
"""Build the bundle: nvct, its dependencies, a Python and the C library below it, in one tar.gz.

::

    .venv/bin/python packaging/bundle/build.py --out dist
    nvct-VERSION-ARCH/bin           the programs, one static file under many names (start.c)
                      libexec       the interpreter, and nvct-hot where it was built (make static)
                      lib           its loader and libraries; lib/python3.11 its modules and nvct
                      licenses      whose work all this is, under which license

The interpreter is the one that .venv was made from, and must be a Debian package's: dpkg tells
what is whose. The same tree and packages give the same bytes. Contract: nothing outside of --out
and a temporary folder is written.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import archive
import licenses

from nvct.launcher.install import FLAGS, check_hot, is_static, static_pie
from nvct_sim.native import build as native

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
STDLIB = Path(os.__file__).resolve().parent
SITE = f"lib/{STDLIB.name}/dist-packages"
"""Where Debian's Python looks for others' modules, below its prefix."""
PYTHON_NAME = "nvct-python"
WRAPPER = "libexec/nvct-wrapper"
"""As nvct/installer/programs.py has it."""
PROGRAMS = (
    PYTHON_NAME, "nvct", "nvidia-ctk", "nvidia-container-cli", "nvidia-container-runtime",
    "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy", "nvidia-cdi-hook",
    "nvidia-container-runtime-hook", "nvidia-container-toolkit",
)  # fmt: skip
UNUSED = re.compile(
    r"(config-|test$|idlelib$|lib2to3$|tkinter$|turtle|ensurepip$|venv$|pydoc|distutils$|sqlite3$|"
    r"curses$|dbm$|EXTERNALLY-MANAGED|sitecustomize|antigravity|this\.py|__phello__)"
)
"""What nvct does not import, or what belongs to the host (sitecustomize leads to /etc)."""
UNUSED_EXTENSIONS = re.compile(
    r"_?xx|_test|_ssl|_hashlib|_sqlite3|_curses|_dbm|_gdbm|_tkinter|_crypt|_uuid|_lzma|_bz2|nis|"
    r"readline|ossaudiodev|audioop"
)
"""Those that bring a library whose holes would then be ours to close: OpenSSL above all."""
WITH_LIBC = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "libresolv.so.2", "libanl.so.1", "libnss_files.so.2", "libnss_dns.so.2",
    "libgcc_s.so.1",
)  # fmt: skip
"""What the driver's NVML or the C library itself may load: never the host's, whose C library is
another one."""


VERSIONS = ((3, 11), (3, 12), (3, 13))
"""Those that requirements.txt has compiled packages for."""


def main() -> None:
    """Build it, and print its path.

    Raises:
        SystemExit: something that it needs is missing; nothing is written.
    """
    if sys.version_info[:2] not in VERSIONS:
        raise SystemExit("the bundle is made with Python 3.11, 3.12 or 3.13")
    said = argparse.ArgumentParser(description="Build the bundle.")
    said.add_argument("--out", type=Path, default=SOURCES / "dist", help="folder for the tar.gz")
    said.add_argument(
        "--hot", type=Path, default=SOURCES / "build/static/nvct-hot",
        help="the hot side's static executable; left out where it is not there",
    )  # fmt: skip
    given = said.parse_args()
    out: Path = given.out
    text = (SOURCES / "nvct/version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.*)"', text, re.MULTILINE)
    if version is None:
        raise SystemExit("nvct/version.py tells no version")
    name = f"nvct-{version[1]}-{platform.machine()}"
    with tempfile.TemporaryDirectory(prefix="nvct-bundle-") as work:
        root = Path(work, name)
        root.mkdir()
        origins = build(root)
        if given.hot.exists():
            check_hot(str(given.hot))
            put(given.hot, root / licenses.HOT)
            (root / licenses.HOT).chmod(0o755)
        licenses.write(root, origins, SITE)
        compile_modules(root)
        made = archive.pack(root, out / f"{name}.tar.gz", archive.epoch(SOURCES))
    print(made)


def build(root: Path) -> dict[str, Path]:
    """Fill the bundle's folder; return what each of its files is a copy of, if of a package."""
    interpreter = Path(os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable))
    origins = {"libexec/python3": interpreter}
    origins |= {f"lib/{STDLIB.name}/{p}": STDLIB / p for p in standard_library()}
    for place, source in origins.items():
        put(source, root / place)
    (root / "libexec/python3").chmod(0o755)
    add_packages(root / SITE)
    add_nvct(root)
    loader, libraries = closure(root, interpreter)
    for name, source in libraries.items():
        origins[f"lib/{name}"] = source
        put(source, root / "lib" / name)
    (root / "lib" / loader).chmod(0o755)
    add_programs(root, loader)
    return origins


def standard_library() -> list[str]:
    """Return the files of the standard library that are taken, relative to it."""
    taken = []
    for folder, folders, files in os.walk(STDLIB):
        place = Path(folder).relative_to(STDLIB)
        top = place == Path()
        folders[:] = sorted(
            name for name in folders
            if name != "__pycache__" and not name.endswith("-packages")
            and not (top and UNUSED.match(name))
        )  # fmt: skip
        unused = UNUSED if top else UNUSED_EXTENSIONS if place.name == "lib-dynload" else None
        taken += [str(place / f) for f in sorted(files) if not (unused and unused.match(f))]
    return taken


def put(source: Path, place: Path) -> None:
    """Copy a file, not a link."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(0o644)


def add_packages(site: Path) -> None:
    """Install the dependencies, whose versions and hashes are in requirements.txt."""
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes",
        "--target", str(site), "--requirement", str(HERE / "requirements.txt"),
    )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)
    for folder in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (folder / name).unlink(missing_ok=True)


def add_nvct(root: Path) -> None:
    """Copy nvct and what people read."""
    for source in sources():
        put(source, root / SITE / source.relative_to(SOURCES))
    native.ship(root / SITE / "nvct_sim/native" / native.SHIPPED.name)
    put(SOURCES / "LICENSE", root / "LICENSE")
    put(HERE / "README.md", root / "README.md")
    put(SOURCES / "hooks/oci-nvidia-hook.json", root / "share/nvct/hooks/oci-nvidia-hook.json")


def sources() -> list[Path]:
    """Return the files of nvct's packages, without what a Python has compiled of them."""
    files = [path for name in ("nvct", "nvct_sim") for path in (SOURCES / name).rglob("*")]
    return sorted(
        path for path in files if path.is_file()
        and not any(p == "__pycache__" or p[0] == "." for p in path.relative_to(SOURCES).parts)
    )  # fmt: skip


def closure(root: Path, interpreter: Path) -> tuple[str, dict[str, Path]]:
    """Return the loader's name, and by name every library that something in the bundle needs."""
    found: dict[str, Path] = {}
    loader = ""
    for path in [interpreter, *sorted((root / "lib").rglob("*.so"))]:
        for line in run("ldd", str(path)).splitlines():
            if "not found" in line:
                raise SystemExit(f"{path} needs {line.strip()}")
            if match := re.match(r"\s+(\S+) => (/\S+) ", line):
                found[match[1]] = Path(match[2])
            elif match := re.match(r"\s+(/\S*/(ld-\S+)) ", line):
                loader = match[2]
                found[loader] = Path(match[1])
    folder = found["libc.so.6"].parent
    found |= {name: folder / name for name in WITH_LIBC if (folder / name).exists()}
    return loader, found


def add_programs(root: Path, loader: str) -> None:
    """Compile the one program and give it its names; and what `nvct install` puts before them."""
    folder = root / "bin"
    folder.mkdir()
    compiler = os.environ.get("CC") or shutil.which("musl-gcc") or "cc"
    command = [compiler, *FLAGS, *static_pie(compiler), "-Wl,--build-id=none"]
    command.append(f"-I{SOURCES}/nvct/launcher")
    run(
        *command, f'-DNVCT_LOADER="{loader}"', f'-DNVCT_SITE="{SITE}"',
        "-o", str(folder / PYTHON_NAME), str(HERE / "start.c"),
    )  # fmt: skip
    run(*command, "-o", str(root / WRAPPER), str(HERE / "wrapper.c"))
    for path in (folder / PYTHON_NAME, root / WRAPPER):
        if not is_static(path.read_bytes()):
            raise SystemExit(f"{compiler} made no static program of {path.name}")
    for name in PROGRAMS[1:]:
        os.link(folder / PYTHON_NAME, folder / name)


def compile_modules(root: Path) -> None:
    """Compile all modules; what is compiled is never compared with its source, nor written again.

    So that the bundle is the same wherever and whenever it is unpacked, also on a disk that cannot
    be written. Its own Python does it, which shows that it runs.
    """
    code = (
        "import compileall,py_compile,sys;"
        "sys.exit(not compileall.compile_dir(sys.argv[1],maxlevels=20,quiet=1,force=True,"
        "stripdir=sys.argv[2],invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))"
    )
    run(str(root / "bin" / PYTHON_NAME), "-B", "-c", code, str(root / "lib"), str(root.parent))
    run(str(root / "bin/nvct"), "--version")


def run(*command: str) -> str:
    """Run a program and return its output, or end with what it says."""
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
