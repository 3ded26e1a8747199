# SPDX-License-Identifier: Apache-2.0
"""What becomes the image: its inputs, and the bill of materials."""

import hashlib
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.processes import captured
from tests.unit.image.conftest import load

build = load("build")
sbom = load("sbom")

BUILD = Path(str(build.__file__))
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13.dfsg-1
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return what looks like a bundle."""
    root = tmp_path / "nvct-9.8-x86_64"
    package = root / "lib/python3.11/dist-packages/nvct"
    package.mkdir(parents=True)
    (package / "version.py").write_text('__version__ = "9.8"\n')
    (root / "bin").mkdir()
    (root / "bin/nvct-python").write_text("#!/bin/sh\n")
    (root / "bin/nvct-python").chmod(0o755)
    return root


def refused(*arguments: str) -> str:
    """Return the message of a build that ends without an image."""
    done = captured([sys.executable, str(BUILD), *arguments])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_every_tag_has_its_program() -> None:
    programs = {file.name for file in (build.HERE / "programs").iterdir()} | set(build.LINKS)

    entrypoints = [entrypoint[0] for _, entrypoint, _ in build.PROGRAMS.values()]
    assert [path for path in entrypoints if path.removeprefix("/usr/bin/") not in programs] == []


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    message = refused(f"--base={tmp_path}", f"--bundle={tmp_path}", f"--wheels={tmp_path}")
    assert message == (
        f"build.py: {tmp_path} is no unpacked bundle: run `make bundle` and unpack that\n"
    )


def test_a_folder_without_the_wheels_is_refused(tmp_path: Path, bundle: Path) -> None:
    wheels = tmp_path / "wheels"
    arguments = (f"--base={tmp_path}", f"--bundle={bundle}", f"--wheels={wheels}")
    assert "there is no folder" in refused(*arguments)
    wheels.mkdir()
    assert "No matching distribution found for grpcio" in refused(*arguments)


def test_no_script_names_the_python_that_installed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, wheels = "tool-1.0.dist-info", tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tool.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntool = tool:main\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "requirements.txt").write_text(f"tool==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(build, "HERE", tmp_path)

    build.install_wheels(wheels, tmp_path / "site")

    names = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*")}
    assert "tool.py" in names
    assert not [name for name in names if name.startswith("bin")]


def test_a_base_without_dpkg_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "base.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("etc/passwd"))
    with pytest.raises(build.ImageError, match="it is no root file system of Debian"):
        build.of_base(path)


def test_what_differs_between_two_bases_is_left_out() -> None:
    for path in ("var/log/dpkg.log", "etc/machine-id", "var/lib/dpkg/status-old", "etc/shadow-"):
        assert build.UNUSED.fullmatch(path), path
    for path in ("var/lib/dpkg/status", "etc/passwd", "usr/bin/bash", "runner"):
        assert not build.UNUSED.fullmatch(path), path


def test_the_bill_has_the_packages_of_dpkg_and_of_wheels(tmp_path: Path) -> None:
    info = tmp_path / "Some_Name-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: Some_Name\nVersion: 1.0\nLicense-Expression: MIT\n\ntext"
    )
    hot = b"..nvct 9.8\nPython 3.13.5-2, source package of Debian\nmusl 1.2.3-1\0.."
    (tmp_path / "nvct-hot").write_bytes(hot)
    components = [*sbom.of_dpkg(STATUS, "12"), *sbom.of_folder(tmp_path)]

    document = json.loads(sbom.document("9.8", components, 0))

    found = [
        (one["name"], one["licenseDeclared"], one["externalRefs"][0]["referenceLocator"])
        for one in document["packages"]
    ]
    assert found == [
        ("nvct", "Apache-2.0", "pkg:generic/nvct@9.8"),
        ("libc6", "NOASSERTION",
         "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12"),
        ("musl", "NOASSERTION", "pkg:deb/debian/musl@1.2.3-1?arch=source"),
        ("python3.13", "NOASSERTION", "pkg:deb/debian/python3.13@3.13.5-2?arch=source"),
        ("zlib1g", "NOASSERTION",
         "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64&distro=debian-12"),
        ("Some_Name", "MIT", "pkg:pypi/some-name@1.0"),
    ]  # fmt: skip
    ids = {one["SPDXID"] for one in document["packages"]} | {"SPDXRef-DOCUMENT"}
    assert len(ids) == 7
    assert {one["relatedSpdxElement"] for one in document["relationships"]} < ids
