# SPDX-License-Identifier: Apache-2.0
"""The OCI archive: a valid image layout, the same bytes from the same files."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

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
