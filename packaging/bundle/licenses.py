# SPDX-License-Identifier: Apache-2.0
"""List whose work is in the bundle, and put their licenses beside it.

What comes from Debian packages has its copyright file, as Debian has it, and the version whose
source package Debian keeps; wheels have their licenses in their own folders.
"""

from __future__ import annotations

import email.parser
import re
import shutil
import subprocess
from pathlib import Path

COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])")
HEAD = """\
# What is in this bundle

nvct itself is under the Apache License 2.0 (`../LICENSE`). The rest is others' work, unchanged:

## From {release}

The programs and libraries are Debian's binaries. Their source is `apt-get source PACKAGE=VERSION`;
Debian keeps old versions at <https://snapshot.debian.org>. The C library is under the LGPL: put
another one that fits into `lib/` to use that.

| package | version | files | licenses |
|---|---|---|---|
"""
STANZA = "Package: ${Package}\\nVersion: ${Version}\\nArchitecture: ${Architecture}\\n\\n"
"""Of the file dpkg-status, which lists the same packages for programs."""
HOT = "libexec/nvct-hot"
COMPILED = """\

## Compiled for it

`bin` holds one program of nvct's (`packaging/bundle/start.c`), linked with {libc}.
"""
COMPILED_HOT = """
`{hot}` is nvct's own program (`packaging/static`) with these inside; the interpreter's license is
`../lib/{python}/LICENSE.txt`:

```
{about}
```
"""
WHEELS = """\

## From the Python Package Index

| package | version | license | text |
|---|---|---|---|
"""


def write(root: Path, origins: dict[str, Path], site: str) -> None:
    """Write the folder `licenses`."""
    folder = root / "licenses"
    folder.mkdir()
    files: dict[str, list[str]] = {}
    owner = owners(set(origins.values()))
    for place, source in sorted(origins.items()):
        files.setdefault(owner[source], []).append(place)
    release = re.search(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text(encoding="utf-8"))
    text = HEAD.format(release=release[1] if release else "")
    for package, places in sorted(files.items()):
        name = package.partition(":")[0]
        version = _run("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package)
        _copyright(name, folder)
        text += f"| {name} | {version} | {_some(places)} | `{name}.txt` |\n"
    (folder / "dpkg-status").write_text(
        _run("dpkg-query", "-W", "-f", STANZA, *sorted(files)), encoding="utf-8"
    )
    text += WHEELS
    for info in sorted((root / site).glob("*.dist-info")):
        text += _wheel(info, root)
    (folder / "README.md").write_text(
        text + _compiled(root, folder, Path(site).parent.name), encoding="utf-8"
    )


def owners(sources: set[Path]) -> dict[Path, str]:
    """Return the Debian package of each file."""
    by_path: dict[str, str] = {}
    names = {source: _names(source) for source in sources}
    for some in _chunks(sorted(set().union(*names.values())), 400):
        done = subprocess.run(
            ["dpkg-query", "-S", *some], capture_output=True, text=True, check=False
        )
        for line in done.stdout.splitlines():
            package, _, path = line.partition(": ")
            if not package.startswith("diversion "):
                by_path[path] = package.partition(",")[0]
    found = {
        source: by_path[name] for source in sources for name in names[source] if name in by_path
    }
    missing = sorted(str(source) for source in sources if source not in found)
    if missing:
        raise SystemExit(
            f"{missing[0]} is of no Debian package, so nobody knows its license; "
            "make .venv with Debian's python3"
        )
    return found


def _names(source: Path) -> list[str]:
    """Return the names that dpkg may know a file by: /lib is /usr/lib, by a link."""
    names = {str(source), str(source.resolve())}
    short = {n.removeprefix("/usr") for n in names if n.startswith("/usr/lib")}
    return sorted(names | short | {f"/usr{n}" for n in names if n.startswith("/lib")})


def _chunks(paths: list[str], size: int) -> list[list[str]]:
    return [paths[i : i + size] for i in range(0, len(paths), size)]


def _copyright(package: str, folder: Path) -> None:
    source = Path(f"/usr/share/doc/{package}/copyright")
    if not source.exists():
        raise SystemExit(f"{source} is missing: install {package} with its documentation")
    shutil.copyfile(source, folder / f"{package}.txt")
    for name in set(COMMON.findall(source.read_text(encoding="utf-8", errors="replace"))):
        common = Path("/usr/share/common-licenses", name)
        if common.exists():
            (folder / "common-licenses").mkdir(exist_ok=True)
            shutil.copyfile(common, folder / "common-licenses" / name)


def _wheel(info: Path, root: Path) -> str:
    meta = email.parser.HeaderParser().parsestr(
        (info / "METADATA").read_text(encoding="utf-8").partition("\n\n")[0]
    )
    terms = meta.get("License-Expression") or ""
    if not terms:
        named = [c for c in meta.get_all("Classifier", []) if c.startswith("License :: ")]
        terms = named[-1].rpartition(" :: ")[2] if named else str(meta.get("License", ""))
    texts = [
        path for path in sorted(info.rglob("*"))
        if path.is_file() and re.match(r"(LICEN[SC]E|COPYING|NOTICE)", path.name)
    ]  # fmt: skip
    where = f"`../{texts[0].relative_to(root)}`" if texts else "in its modules"
    return f"| {meta['Name']} | {meta['Version']} | {terms} | {where} |\n"


def _compiled(root: Path, folder: Path, python: str) -> str:
    musl = Path("/usr/share/doc/musl-dev/copyright")
    if musl.exists():
        shutil.copyfile(musl, folder / "musl.txt")
    # No name of glibc's is in what is linked with musl.
    glibc = b"GLIBC_TUNABLES" in (root / "bin/nvct").read_bytes()
    text = COMPILED.format(libc="the C library, `libc6.txt`" if glibc else "musl, `musl.txt`")
    if (root / HOT).exists():
        about = _run(str(root / HOT), "--about").strip()
        text += COMPILED_HOT.format(hot=HOT, python=python, about=about)
    return text


def _some(places: list[str]) -> str:
    named = ", ".join(f"`{place}`" for place in places[:3])
    return named if len(places) <= 3 else f"{named} and {len(places) - 3} more"


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
