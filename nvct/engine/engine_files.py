# SPDX-License-Identifier: Apache-2.0
"""Reads from engines' files what a user asked for when a container was created. Cold side.

Docker keeps the request in containers/ID, Podman since 5.0 in an SQLite database; the images of
Podman and CRI-O are in containers/storage. Rootless engines keep all of these below
~/.local/share. On Kubernetes, containerd and CRI-O write the image's name into annotations of
config.json. The formats are those of dockerd 20.10 to 29 and Podman 5. No engine is asked.
"""

from __future__ import annotations

import base64
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvct.errors import DocumentError
from nvct.linux.files import read_bytes

LIMIT = 16 << 20
BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task/*/{id}",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/{id}",
    "/var/lib/containers/storage/*-containers/{id}/userdata",
)
USERS_BUNDLES = (
    "{run}/docker/containerd/daemon/io.containerd.runtime.v2.task/*/{id}",
    "{run}/containerd/*/io.containerd.runtime.v2.task/*/{id}",
    "{data}/containers/storage/*-containers/{id}/userdata",
)
IMAGE_ANNOTATIONS = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")
FLAGS = ("--gpus", "--runtime", "--privileged", "--hooks-dir")
"""Options of `docker run` and `podman run` that concern GPUs, beside arguments with GPU_WORDS."""
GPU_WORDS = ("NVIDIA_", "nvidia.com/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """What an engine was asked to create."""

    engine: str = ""
    image: str = ""
    env: Sequence[str] | None = None  # of image and user, before nvct; None if no file has it
    image_env: Sequence[str] | None = None  # of the image alone; None if unknown
    words: Sequence[str] = field(default=())  # arguments that ask for a GPU: --gpus device=2

    def who_set(self, name: str) -> str:
        """Return who set a variable: "the image", "the user", or "" if that is unknown."""
        value = self.value(name)
        if value is None or self.image_env is None:
            return ""
        return "the image" if f"{name}={value}" in self.image_env else "the user"

    def value(self, name: str) -> str | None:
        """Return the value of a variable in the request; None if it is not set or unknown."""
        values = [entry for entry in self.env or () if entry.startswith(f"{name}=")]
        return values[-1].partition("=")[2] if values else None


def creation_of(
    id_: str, env: Mapping[str, str], annotations: Mapping[str, str], host: str = "/"
) -> Creation:
    """Return what an engine was asked to create for a container, as far as files tell.

    `id_` is the engine's id of the container, and `annotations` are those of its config.json.
    `env` is this process's environment, which says where a user's rootless engines keep files.
    `host` is the host's root directory.
    """
    places = [(docker_folder(host), f"{host.rstrip('/')}/var/lib")]
    for docker, data in (*places, *((f"{data}/docker", data) for data in _own_data(env))):
        found = _docker(docker, id_) or _podman(data, id_)
        if found is not None:
            return found
    for key in IMAGE_ANNOTATIONS:
        if key in annotations:
            engine = "CRI-O" if "cri-o" in key else "containerd"
            return Creation(engine=engine, image=annotations[key])
    return Creation()


def own_names(env: Mapping[str, str]) -> dict[str, str]:
    """Return the names, by id, of the containers in this user's rootless engines; {} for root."""
    names: dict[str, str] = {}
    for data in _own_data(env):
        for path in glob.glob(f"{glob.escape(data)}/docker/containers/*/config.v2.json"):
            names[path.split("/")[-2]] = str(read_object(path).get("Name", "")).lstrip("/")
        for path in glob.glob(
            f"{glob.escape(data)}/containers/storage/*-containers/*tainers.json"
        ):
            names |= podman_names(path)
    return names


def podman_names(path: str) -> dict[str, str]:
    """Return the names, by id, of the containers in a containers.json of containers/storage."""
    names = {}
    for entry in read_list(path):
        given = entry.get("names") if isinstance(entry, dict) else None
        if isinstance(given, list) and given and isinstance(given[0], str):
            names[str(entry.get("id"))] = given[0]
    return names


def docker_folder(host: str = "/") -> str:
    """Return the data-root of root's dockerd: the folder of its containers and images."""
    root = host.rstrip("/")
    named = read_object(f"{root}/etc/docker/daemon.json").get("data-root")
    is_path = isinstance(named, str) and named.startswith("/")
    return f"{root}{named if is_path else '/var/lib/docker'}"


def bundle_of(id_: str, env: Mapping[str, str], host: str = "/") -> str:
    """Return the folder of a container's OCI bundle; "" if there is none."""
    patterns = [f"{host.rstrip('/')}{one}" for one in BUNDLES]
    for data in _own_data(env):
        run = env.get("XDG_RUNTIME_DIR", "")
        patterns += [one.replace("{run}", run).replace("{data}", data) for one in USERS_BUNDLES]
    found = (path for one in patterns for path in glob.glob(one.replace("{id}", id_)))
    return next((path for path in found if os.path.exists(f"{path}/config.json")), "")


def runtimes_in_use(folder: str) -> Iterator[tuple[str, str]]:
    """Yield id and runtime of each container whose state containerd keeps in a folder.

    The runtime must stay installed: containerd calls it to enter and to stop the container.
    """
    pattern = f"{glob.escape(folder)}/io.containerd.runtime.v2.task/*/*/runtime"
    for path in sorted(glob.glob(pattern)):
        try:
            runtime = os.fsdecode(read_bytes(path, LIMIT)).strip()
        except (OSError, DocumentError):
            continue  # the container has ended
        yield os.path.basename(os.path.dirname(path)), runtime


def _own_data(env: Mapping[str, str]) -> list[str]:
    home = env.get("HOME", "")
    if os.geteuid() == 0 or not home.startswith("/"):
        return []
    return [env.get("XDG_DATA_HOME") or f"{home}/.local/share"]


def _docker(data_root: str, id_: str) -> Creation | None:
    folder = f"{data_root}/containers/{id_}"
    document = read_object(f"{folder}/config.v2.json")
    config = document.get("Config")
    if not isinstance(config, dict):
        return None
    digest = str(document.get("Image", "")).rpartition(":")[2]
    paths = glob.glob(f"{glob.escape(data_root)}/image/*/imagedb/content/sha256/{digest}")
    return Creation(
        engine="Docker",
        image=str(config.get("Image", "")),
        env=_texts(config.get("Env")),
        image_env=image_env(read_object(paths[0])) if paths and digest.isalnum() else None,
        words=[*_docker_words(read_object(f"{folder}/hostconfig.json"))],
    )


def _docker_words(host: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of `docker run` that concern GPUs."""
    requests = host.get("DeviceRequests")
    for one in requests if isinstance(requests, list) else ():
        ids = _texts(one.get("DeviceIDs")) if isinstance(one, dict) else []
        if ids and one.get("Driver") == "cdi":
            yield from (f"--device {word}" for word in ids)
        elif ids:
            yield f"--gpus device={','.join(ids)}"
        elif isinstance(one, dict) and isinstance(one.get("Count"), int):
            yield f"--gpus {'all' if one['Count'] == -1 else one['Count']}"
    if host.get("Privileged") is True:
        yield "--privileged"
    if host.get("Runtime") not in (None, "", "runc"):
        yield f"--runtime {host['Runtime']}"


def _podman(data: str, id_: str) -> Creation | None:
    storage = f"{data}/containers/storage"
    document = _podman_row(f"{storage}/db.sql", id_)
    if document is None:
        return None
    image = str(document.get("rootfsImageID", ""))
    key = base64.b64encode(f"sha256:{image}".encode()).decode()
    paths = glob.glob(f"{glob.escape(storage)}/*-images/{image}/={key}") if image else []
    spec = document.get("spec")
    process = spec.get("process") if isinstance(spec, dict) else None
    return Creation(
        engine="Podman",
        image=str(document.get("rootfsImageName", "")),
        env=_texts(process.get("env")) if isinstance(process, dict) else None,
        image_env=image_env(read_object(paths[0])) if paths else None,
        words=[*_podman_words(_texts(document.get("createCommand")))],
    )


def _podman_row(path: str, id_: str) -> dict[str, Any] | None:
    """Return a container's configuration in Podman's database, None if it cannot be read.

    The database is opened as immutable; otherwise SQLite would create files beside it.
    """
    if not os.path.isfile(path):
        return None
    try:
        import sqlite3
    except ImportError:  # as in the bundle
        return None
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, timeout=1)
        try:
            query = "SELECT JSON FROM ContainerConfig WHERE ID = ?"
            row = database.execute(query, (id_,)).fetchone()
        finally:
            database.close()
        document = json.loads(row[0]) if row else None
    except (sqlite3.Error, ValueError, RecursionError, TypeError):
        return None
    return document if isinstance(document, dict) else None


def _podman_words(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of `podman run` that concern GPUs; others may contain secrets."""
    for before, word in zip(["", *command], command, strict=False):
        if any(part in word for part in GPU_WORDS):
            has_flag = before.startswith("-") and "=" not in before and not word.startswith("-")
            yield f"{before} {word}" if has_flag else word
        elif word.partition("=")[0] in FLAGS and ("=" in word or word == "--privileged"):
            yield word
        elif before in FLAGS and before != "--privileged":
            yield f"{before} {word}"


def image_env(document: Mapping[str, Any]) -> list[str] | None:
    """Return the variables in an image's configuration; None if it is malformed."""
    config = document.get("config")
    return _texts(config.get("Env")) if isinstance(config, dict) else None


def _texts(value: object) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def read_object(path: str) -> dict[str, Any]:
    """Return the object in a JSON file of an engine; an empty one if it cannot be read."""
    document = _read(path)
    return document if isinstance(document, dict) else {}


def read_list(path: str) -> list[Any]:
    """Return the list in a JSON file of an engine; an empty one if it cannot be read."""
    document = _read(path)
    return document if isinstance(document, list) else []


def _read(path: str) -> object:
    try:
        return json.loads(read_bytes(path, LIMIT))
    except (OSError, DocumentError, ValueError, RecursionError):
        return None
