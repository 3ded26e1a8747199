# SPDX-License-Identifier: Apache-2.0
"""Assemble a release: one folder to put on a web server, from what other targets put into dist/.

::

    .venv/bin/python packaging/release/build.py --key KEY --url URL --helm PROGRAM --out FOLDER
    FOLDER/nvct.sources, nvct.repo    what apt and dnf are told; nvct.asc is the public key
           apt, rpm, helm             repositories
           python, bundle, images     files to download
           sbom                       their bills of materials; the image's is in images
           notes.md                   this version's part of CHANGELOG.md
           SHA256SUMS                 of all files that are no signature, and SHA256SUMS.asc

The same dist/, key and sources give the same SHA256SUMS: only signatures tell when they were made.
Contract: the folder appears when it is complete, and nothing that exists is replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
sys.path[1:1] = [str(HERE.parent / "bundle"), str(HERE.parent / "image")]

import archive  # noqa: E402
import sbom  # noqa: E402

from nvct.version import __version__ as version  # noqa: E402

PACKAGES = ("nvct", "nvct-base", "nvct-mig-manager", "nvct-operator-extensions", "nvct-sim")
FILES = {
    "apt/pool": [(f"{name}_{{}}_*.deb", "deb") for name in PACKAGES],
    "rpm": [(f"{name}-{{}}-*.rpm", "bundle rpm") for name in (*PACKAGES, "nvct-bundle")],
    "bundle": [("nvct-{}-*.tar.gz", "bundle")],
    "images": [("nvct-{}-*.oci.tar", "image"), ("nvct-{}-*.spdx.json", "image")],
    "python": [("nvct-{}-py3-none-any.whl", "wheel"), ("nvct-{}.tar.gz", "wheel")],
}
"""By folder: names of files in dist/, for a version, and the target that makes them."""
UNPACK = {
    ".deb": 'dpkg-deb -x "$1" .',
    ".rpm": 'rpm2cpio "$1" | cpio --quiet -idm',
    ".whl": 'python3 -m zipfile -e "$1" .',
    ".gz": 'tar -xzf "$1"',
    ".tgz": 'tar -xzf "$1"',
}
SUITE = "apt/dists/stable"
SUMS = "SHA256SUMS"
SIGNATURES = re.compile(rf"InRelease|Release\.gpg|(repomd\.xml|{SUMS})\.asc|.*\.prov")
APT_SOURCE = """\
# To be /etc/apt/sources.list.d/nvct.sources
Types: deb
URIs: {url}/apt
Suites: stable
Components: main
Architectures: {architectures}
Signed-By:
{key}
"""
RPM_SOURCE = """\
# To be /etc/yum.repos.d/nvct.repo. The signed metadata has the packages' checksums.
[nvct]
name=nvct
baseurl={url}/rpm
enabled=1
repo_gpgcheck=1
gpgcheck=0
gpgkey={url}/nvct.asc
"""


def main() -> None:
    """Assemble it, and print its path.

    Raises:
        SystemExit: an input is missing or wrong, or a program fails; nothing is written.
    """
    given = arguments()
    url = given.url.rstrip("/")
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise SystemExit(f'release: "{given.url}" is no address of a web server: URL=https://…')
    if given.out.exists():
        raise SystemExit(f"release: {given.out} exists: move it away, or name another by OUT=")
    key = fingerprint(given.key)
    former = former_files(given.former, key) if given.former else []
    notes = notes_of()
    if given.check and not given.dirty:
        check_committed()
    os.umask(0o022)  # a web server reads it
    with work_folder(given.out) as work:
        (trial := Path(work, "trial")).touch()
        sign(trial, key, trial.with_suffix(".asc"))
        if given.check:
            return
        root = Path(work, "release")
        when = archive.epoch(SOURCES)
        for folder, paths in {**files_of(given.dist), "helm": []}.items():
            names = {path.name for path in paths}
            stay = [p for p in former if p.parent == given.former / folder and p.name not in names]
            put(root / folder, paths + stay, when)
        (root / "notes.md").write_text(notes, "utf-8")
        (root / "nvct.asc").write_text(run("gpg", "--batch", "--armor", "--export", key), "utf-8")
        (root / "nvct.repo").write_text(RPM_SOURCE.format(url=url), "utf-8")
        make_apt(root, url, key, when)
        make_rpm(root / "rpm", key, when)
        make_helm(root / "helm", given.helm, key, when)
        make_bills(root, when)
        make_sums(root, key)
        root.rename(given.out)
    print(given.out)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Assemble a release.")
    parser.add_argument("--key", required=True, help="gpg's name of the secret key that signs")
    parser.add_argument("--url", required=True, help="where the folder will be served")
    parser.add_argument("--helm", default="helm", help="the program")
    parser.add_argument("--dist", type=Path, default=SOURCES / "dist", help="folder to read")
    parser.add_argument("--former", type=Path, help="the release before, whose files stay")
    parser.add_argument("--out", type=Path, default=Path("build/release"), help="the folder")
    parser.add_argument("--check", action="store_true", help="end before dist is read")
    parser.add_argument("--dirty", action="store_true", help="check no commit")
    given = parser.parse_args()
    given.out = given.out.resolve()  # programs run elsewhere
    return given


def check_committed() -> None:
    """Look at the checkout, if it is one of git.

    Raises:
        SystemExit: it has files that are in no commit: packages would have them in.
    """
    asks = ("sh", "-c", 'git -C "$0" status --porcelain', str(SOURCES))
    if named := run(*asks, may_fail=True).splitlines():
        path = named[0][3:]
        raise SystemExit(f"release: {path} is not as committed: commit or remove it, or DIRTY=1")


def work_folder(out: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder beside the one to make.

    Raises:
        SystemExit: none can be made there.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".release-", dir=out.parent)
    except OSError as error:
        raise SystemExit(f"release: {out} cannot be made: {error.strerror}") from error


def fingerprint(name: str) -> str:
    """Return the fingerprint of gpg's one secret key of this name.

    Raises:
        SystemExit: there is none, or more than one.
    """
    command = ["gpg", "--batch", "--with-colons", "--list-secret-keys", "--", name]
    said = run(*command, may_fail=True) if name else ""
    keys = re.findall(r"^sec:.*\n(?:grp:.*\n)*fpr:+(\w+):", said, re.MULTILINE)
    if len(keys) != 1:
        count = "no secret key" if not keys else f"{len(keys)} secret keys"
        raise SystemExit(f'release: gpg has {count} of the name "{name}": KEY=FINGERPRINT')
    return str(keys[0])


def files_of(dist: Path) -> dict[str, list[Path]]:
    """Return the files of the version, by the folder that they belong in.

    Raises:
        SystemExit: one is missing.
    """
    built: dict[str, list[Path]] = {}
    for folder, names in FILES.items():
        for name, target in names:
            pattern = name.format(version)
            paths = sorted(dist.glob(pattern))
            if not paths:
                raise SystemExit(f"release: {dist} has no {pattern}: run make {target}")
            built.setdefault(folder, []).extend(paths)
    return built


def former_files(former: Path, key: str) -> list[Path]:
    """Return the files of the release before that stay, so that one can go back.

    Raises:
        SystemExit: it is no release, or somebody else than the key has signed or changed it.
    """
    if not (former / SUMS).is_file():
        raise SystemExit(f"release: {former} is no release: it has no {SUMS}")
    verify = ("gpg", "--batch", "--status-fd", "1", "--verify", f"{SUMS}.asc", SUMS)
    if not re.search(rf" VALIDSIG .*{key}$", run(*verify, at=former), re.MULTILINE):
        raise SystemExit(f"release: {former} is signed by another key")
    run("sha256sum", "--check", "--strict", "--quiet", SUMS, at=former)
    paths = [former / line.split("  ")[1] for line in (former / SUMS).read_text().splitlines()]
    return [path for path in paths if path.suffix in UNPACK or path.parent.name == "images"]


def notes_of() -> str:
    """Return what CHANGELOG.md says of the version; a heading may leave out its last ".0".

    Raises:
        SystemExit: it says nothing.
    """
    heading = rf"^## {re.escape(version.removesuffix('.0'))}(?:\.0)?(?: .*)?\n"
    text = (SOURCES / "CHANGELOG.md").read_text("utf-8")
    parts = re.split(heading, text, maxsplit=1, flags=re.MULTILINE)
    if len(parts) == 1:
        raise SystemExit(f"release: CHANGELOG.md has no heading for {version}")
    return f"# nvct {version}\n\n" + parts[1].split("\n## ")[0].strip() + "\n"


def put(folder: Path, paths: list[Path], when: int) -> None:
    """Copy files, with the time of the sources: the rpm repository tells it."""
    folder.mkdir(parents=True)
    for path in paths:
        place = folder / path.name
        shutil.copyfile(path, place)
        os.utime(place, (when, when))


def make_apt(root: Path, url: str, key: str, when: int) -> None:
    """Write the indices of the pool, the signed Release that names them, and nvct.sources."""
    named = {path.stem.rsplit("_", 1)[1] for path in (root / "apt/pool").iterdir()}
    architectures = sorted(named - {"all"})
    suite = root / SUITE
    for architecture in architectures:
        folder = suite / f"main/binary-{architecture}"
        folder.mkdir(parents=True)
        text = run(
            "dpkg-scanpackages", "--multiversion", "--arch", architecture, "pool", at=root / "apt"
        ).encode()
        (folder / "Packages").write_bytes(text)
        (folder / "Packages.xz").write_bytes(lzma.compress(text))
    lines = [
        "Origin: nvct", "Label: nvct", "Suite: stable", "Codename: stable",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S UTC", time.gmtime(when)),
        f"Architectures: {' '.join(architectures)}", "Components: main", "SHA256:",
    ]  # fmt: skip
    lines += [
        f" {sha256(path)} {path.stat().st_size} {path.relative_to(suite)}"
        for path in sorted(suite.rglob("Packages*"))
    ]
    release = suite / "Release"
    release.write_text("\n".join(lines) + "\n", "utf-8")
    sign(release, key, suite / "Release.gpg")
    sign(release, key, suite / "InRelease", how="--clearsign")
    text_of_key = (root / "nvct.asc").read_text("utf-8").strip()
    source = APT_SOURCE.format(
        url=url, architectures=" ".join(architectures),
        key="\n".join(f" {line or '.'}" for line in text_of_key.splitlines()),
    )  # fmt: skip
    (root / "nvct.sources").write_text(source, "utf-8")


def make_rpm(folder: Path, key: str, when: int) -> None:
    """Write the repository's metadata and its signature."""
    run(
        "createrepo_c", "--quiet", "--no-database", "--revision", str(when),
        "--set-timestamp-to-revision", str(folder),
    )  # fmt: skip
    sign(folder / "repodata/repomd.xml", key, folder / "repodata/repomd.xml.asc")


def make_helm(folder: Path, helm: str, key: str, when: int) -> None:
    """Pack the chart; write the index with the time of the sources, and what --verify reads."""
    archive.pack(HERE.parent / "helm/nvct", folder / f"nvct-{version}.tgz", when)
    run(helm, "repo", "index", str(folder))
    index = folder / "index.yaml"
    moment = time.strftime('"%Y-%m-%dT%H:%M:%SZ"', time.gmtime(when))
    text = re.sub(
        r'^( *(?:created|generated): )".*"', rf"\1{moment}", index.read_text("utf-8"),
        flags=re.MULTILINE,
    )  # fmt: skip
    index.write_text(text, "utf-8")
    for chart in sorted(folder.glob("*.tgz")):
        about = run("tar", "-xzOf", str(chart), "nvct/Chart.yaml")
        unsigned = folder / "unsigned"
        sums = f"files:\n  {chart.name}: sha256:{sha256(chart)}\n"
        unsigned.write_text(f"{about}\n...\n{sums}", "utf-8")
        sign(unsigned, key, folder / f"{chart.name}.prov", how="--clearsign")
        unsigned.unlink()


def make_bills(root: Path, when: int) -> None:
    """Write what is in each file that is installed."""
    (root / "sbom").mkdir()
    for folder in ("apt/pool", "rpm", "bundle", "python", "helm"):
        for path in sorted((root / folder).iterdir()):
            if path.suffix not in UNPACK:
                continue
            with tempfile.TemporaryDirectory(prefix="nvct-sbom-") as inside:
                run("sh", "-c", UNPACK[path.suffix], "sh", str(path), at=Path(inside))
                components = sbom.of_folder(Path(inside))
            text = sbom.document(version, components, when, path)
            (root / "sbom" / f"{path.name}.spdx.json").write_text(text, "utf-8")


def make_sums(root: Path, key: str) -> None:
    """Write the checksums and their signature."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    lines = [
        f"{sha256(path)}  {path.relative_to(root)}\n"
        for path in paths if not SIGNATURES.fullmatch(path.name)
    ]  # fmt: skip
    (root / SUMS).write_text("".join(lines), "utf-8")
    sign(root / SUMS, key, root / f"{SUMS}.asc")


def sign(path: Path, key: str, out: Path, how: str = "--detach-sign") -> None:
    """Sign a file."""
    run(
        "gpg", "--batch", "--local-user", key, "--digest-algo", "SHA512", "--armor",
        "--output", str(out), how, str(path),
    )  # fmt: skip


def sha256(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str, at: Path | None = None, may_fail: bool = False) -> str:
    """Run a program and return its output.

    Raises:
        SystemExit: it is not installed, or fails.
    """
    try:
        done = subprocess.run(
            command, cwd=at, env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SystemExit(f"release: {command[0]} is not installed") from error
    if done.returncode and not may_fail:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SystemExit(f"release: {Path(command[0]).name} failed: {said[-1] if said else ''}")
    return done.stdout


if __name__ == "__main__":
    main()
