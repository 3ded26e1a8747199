# SPDX-License-Identifier: Apache-2.0
"""What Docker, Podman and the kubelet's engines have written about a container."""

import base64
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from nvct.engine import engine_files
from tests.support.host_tree import HostTree

ID, IMAGE = "ab" * 32, "cd" * 32
ENV = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute"]
ASKED = ["PASSWORD=x", "NVIDIA_VISIBLE_DEVICES=2", *ENV[:1], *ENV[2:]]


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def creation(tree: HostTree, annotations: dict[str, str] | None = None) -> engine_files.Creation:
    return engine_files.creation_of(ID, {}, annotations or {}, str(tree.base))


def docker(tree: HostTree, host: object) -> None:
    folder = f"var/lib/docker/containers/{ID}"
    config = {"Config": {"Image": "cuda:12", "Env": ASKED}, "Image": f"sha256:{IMAGE}"}
    tree.write(f"{folder}/config.v2.json", json.dumps(config))
    tree.write(f"{folder}/hostconfig.json", json.dumps(host))
    image = f"var/lib/docker/image/overlay2/imagedb/content/sha256/{IMAGE}"
    tree.write(image, json.dumps({"config": {"Env": ENV}}))


def test_docker(tree: HostTree) -> None:
    docker(tree, {"DeviceRequests": None, "Runtime": "nvidia", "Privileged": True})

    found = creation(tree)

    assert (found.engine, found.image) == ("Docker", "cuda:12")
    assert found.who_set("NVIDIA_VISIBLE_DEVICES") == "the user"
    assert found.who_set("NVIDIA_DRIVER_CAPABILITIES") == "the image"
    assert found.who_set("NVIDIA_GDS") == ""
    assert found.value("NVIDIA_VISIBLE_DEVICES") == "2"
    assert found.words == ["--privileged", "--runtime nvidia"]


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"Driver": "", "Count": -1, "DeviceIDs": None}, "--gpus all"),
        ({"Driver": "nvidia", "Count": 2, "DeviceIDs": None}, "--gpus 2"),
        ({"Driver": "", "Count": 0, "DeviceIDs": ["1", "3"]}, "--gpus device=1,3"),
        ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}, "--device nvidia.com/gpu=0"),
    ],
)
def test_docker_s_flags(request_: dict[str, object], word: str, tree: HostTree) -> None:
    docker(tree, {"DeviceRequests": [request_], "Runtime": "runc"})
    assert creation(tree).words == [word]


def test_podman(tree: HostTree) -> None:
    storage = tree.base / "var/lib/containers/storage"
    key = base64.b64encode(f"sha256:{IMAGE}".encode()).decode()
    image = f"var/lib/containers/storage/overlay-images/{IMAGE}/={key}"
    tree.write(image, json.dumps({"config": {"Env": ENV}}))
    command = [
        "podman", "run", "-e", "PASSWORD=x", "--env", "NVIDIA_VISIBLE_DEVICES=2", "--gpus", "all",
        "--device=nvidia.com/gpu=1", "--privileged", "cuda", "sleep",
    ]  # fmt: skip
    document = {
        "rootfsImageName": "cuda:12",
        "rootfsImageID": IMAGE,
        "createCommand": command,
        "spec": {"process": {"env": ASKED}},
    }
    database = sqlite3.connect(storage / "db.sql")
    database.execute("CREATE TABLE ContainerConfig (ID TEXT, JSON TEXT)")
    database.execute("INSERT INTO ContainerConfig VALUES (?, ?)", (ID, json.dumps(document)))
    database.commit()
    database.close()

    found = creation(tree)

    assert (found.engine, found.image) == ("Podman", "cuda:12")
    assert found.who_set("NVIDIA_VISIBLE_DEVICES") == "the user"
    assert found.words == [
        "--env NVIDIA_VISIBLE_DEVICES=2", "--gpus all", "--device=nvidia.com/gpu=1", "--privileged",
    ]  # fmt: skip
    assert sorted(path.name for path in storage.iterdir()) == ["db.sql", "overlay-images"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"Config": {"Env": 3}}', '{"Config": []}', "[" * 100_000]
)
def test_a_damaged_file_of_docker(text: str, tree: HostTree) -> None:
    tree.write(f"var/lib/docker/containers/{ID}/config.v2.json", text)
    assert creation(tree).value("NVIDIA_VISIBLE_DEVICES") is None


@pytest.mark.parametrize(
    "host",
    [[], {"DeviceRequests": 3}, {"DeviceRequests": [3, None, {}]}, {"Runtime": ["x"]}],
)
def test_a_damaged_hostconfig(host: object, tree: HostTree) -> None:
    docker(tree, host)
    assert creation(tree).engine == "Docker"


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0", b"\0" * 5000])
def test_a_damaged_database(data: bytes, tree: HostTree) -> None:
    path = tree.base / "var/lib/containers/storage/db.sql"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert creation(tree) == engine_files.Creation()


def test_a_python_without_sqlite(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of the bundle."""
    tree.write("var/lib/containers/storage/db.sql", "a database")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert creation(tree) == engine_files.Creation()


def test_the_kubelet_s_engines(tree: HostTree) -> None:
    assert creation(tree, {"io.kubernetes.cri.image-name": "a:1"}) == engine_files.Creation(
        engine="containerd", image="a:1"
    )
    assert creation(tree, {"io.kubernetes.cri-o.ImageName": "a:1"}).engine == "CRI-O"


def test_the_bundle_is_found(tree: HostTree) -> None:
    folder = f"run/containerd/io.containerd.runtime.v2.task/moby/{ID}"
    tree.write(f"{folder}/config.json", "{}")
    assert engine_files.bundle_of(ID, {}, str(tree.base)) == f"{tree.base}/{folder}"
    assert engine_files.bundle_of("ef" * 32, {}, str(tree.base)) == ""
