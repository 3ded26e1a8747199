# SPDX-License-Identifier: Apache-2.0
"""The OCI archive: a valid image layout, the same bytes from the same files."""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import captured
from tests.unit.image.conftest import load

layers = load("layers")
oci = load("oci")

LABELS = {"org.opencontainers.image.title": "a title"}


def folder(path: Path, when: int = 0) -> Path:
    """Make a folder with a file, a program under two names, a link and an empty folder."""
    (path / "bin").mkdir(parents=True)
    (path / "empty").mkdir()
    (path / "data").write_text("data")
    (path / "bin/b").write_text("program")
    (path / "bin/b").chmod(0o700)
    os.link(path / "bin/b", path / "bin/a")
    (path / "link").symlink_to("data")
    for file in (path / "data", path / "bin/b", path / "bin"):
        os.utime(file, (when, when))
    return path


def write(path: Path, when: int = 0) -> Path:
    """Write an archive of two images and two layers."""
    path.mkdir(exist_ok=True)
    root = folder(path / "root", when)
    made = [
        layers.write([layers.Entry("etc/name", content=b"x\n")], path / "0.tar.gz", "first"),
        layers.write(layers.of_folder(root, "opt/it"), path / "1.tar.gz", "second"),
    ]
    images = [
        oci.Image(tag=tag, entrypoint=[f"/{tag}"], env={"A": "1"}, labels=LABELS)
        for tag in ("one", "two")
    ]
    out = path / "image.oci.tar"
    oci.write(out, "name", images, made, machine="aarch64", when=86400)
    return out


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """Return what a descriptor names, after a check of its size and digest."""
    kind, _, digest = descriptor["digest"].partition(":")
    data = files[f"blobs/{kind}/{digest}"]
    assert hashlib.sha256(data).hexdigest() == digest
    assert len(data) == descriptor["size"]
    return data


def test_every_descriptor_leads_to_its_blob(tmp_path: Path) -> None:
    files = members(write(tmp_path))

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files["index.json"])
    used = set()
    for entry in index["manifests"]:
        manifest = json.loads(blob(files, entry))
        config = json.loads(blob(files, manifest["config"]))
        plain = [gzip.decompress(blob(files, layer)) for layer in manifest["layers"]]
        diff_ids = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in plain]
        assert config["rootfs"] == {"type": "layers", "diff_ids": diff_ids}
        assert len(config["history"]) == len(diff_ids)
        named = [entry, manifest["config"], *manifest["layers"]]
        used |= {one["digest"].partition(":")[2] for one in named}
    assert {name.rpartition("/")[2] for name in files if name.startswith("blobs/")} == used


def test_each_program_has_a_tag_with_its_entrypoint(tmp_path: Path) -> None:
    files = members(write(tmp_path))

    index = json.loads(files["index.json"])
    tags = [one["annotations"]["org.opencontainers.image.ref.name"] for one in index["manifests"]]
    assert tags == ["one", "two"]
    for tag, entry in zip(tags, index["manifests"], strict=True):
        names = entry["annotations"]
        assert names["io.containerd.image.name"] == f"docker.io/library/name:{tag}"
        manifest = json.loads(blob(files, entry))
        config = json.loads(blob(files, manifest["config"]))
        assert config["architecture"] == "arm64"
        assert config["created"] == "1970-01-02T00:00:00Z"
        assert config["config"]["Entrypoint"] == [f"/{tag}"]
        assert config["config"]["Labels"] == LABELS
        assert config["config"]["Env"] == [oci.PATH, "A=1"]


def test_docker_finds_the_same_images(tmp_path: Path) -> None:
    files = members(write(tmp_path))

    saved = json.loads(files["manifest.json"])
    assert [one["RepoTags"] for one in saved] == [["name:one"], ["name:two"]]
    assert all({one["Config"], *one["Layers"]} <= set(files) for one in saved)


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b", when=1_000_000)

    assert first.read_bytes() == second.read_bytes()


def test_a_folder_becomes_a_layer_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "root")
    monkeypatch.chdir(tmp_path)
    entries = layers.of_folder(Path("root"), "opt/it", lambda path: path != "data")
    made = layers.write(entries, tmp_path / "layer", "it")

    with tarfile.open(tmp_path / "layer") as tar:
        found = {one.name: (one.type, one.mode, one.linkname) for one in tar}
        assert {(one.uid, one.gid, one.mtime, one.uname) for one in tar} == {(0, 0, 0, "")}
    assert found == {
        "opt": (tarfile.DIRTYPE, 0o755, ""),
        "opt/it": (tarfile.DIRTYPE, 0o755, ""),
        "opt/it/bin": (tarfile.DIRTYPE, 0o755, ""),
        "opt/it/bin/a": (tarfile.REGTYPE, 0o755, ""),
        "opt/it/bin/b": (tarfile.LNKTYPE, 0o755, "opt/it/bin/a"),
        "opt/it/link": (tarfile.SYMTYPE, 0o777, "data"),
    }
    assert made.size == (tmp_path / "layer").stat().st_size
    assert made.unpacked == len(gzip.decompress((tmp_path / "layer").read_bytes()))


def test_a_tar_is_taken_without_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "base.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("./dev/null", tarfile.CHRTYPE), ("./etc", tarfile.DIRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755
            tar.addfile(info)
        info = tarfile.TarInfo("./usr/bin/x")
        info.size, info.mode, info.uid = 1, 0o4755, 7
        tar.addfile(info, io.BytesIO(b"x"))

    entries = layers.of_tar(path, lambda name: name != "etc")

    assert entries == [layers.Entry("usr/bin/x", mode=0o4755, owner=(7, 0), content=b"x")]


def test_what_is_no_tar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base.tar").write_text("no tar")

    with pytest.raises(layers.ImageError, match=r"base\.tar cannot be read as a tar"):
        layers.of_tar(tmp_path / "base.tar", lambda _: True)


def test_two_contents_of_one_path_are_refused(tmp_path: Path) -> None:
    entries = [layers.Entry("a", content=b"1"), layers.Entry("a", content=b"2")]

    with pytest.raises(layers.ImageError, match="it: /a is there twice"):
        layers.write(entries, tmp_path / "layer", "it")


# What becomes the image: its inputs, and the bill of materials.


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
