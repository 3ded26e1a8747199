# SPDX-License-Identifier: Apache-2.0
"""Finds images on this host whose own environment asks for all GPUs. Cold; no engine is asked.

Docker keeps an image's configuration in image/DRIVER/imagedb, containers/storage (Podman, CRI-O)
in overlay-images. containerd keeps it among all other content, which is not searched.
"""

from __future__ import annotations

import base64
import glob
from collections.abc import Iterator
from typing import Any

from nvct.config.model import Config
from nvct.doctor.model import Finding, Part, Severity, count
from nvct.doctor.parts import part_of, unseen
from nvct.doctor.reasons import Reason
from nvct.engine.engine_files import read_list, read_object

DOCKER = "var/lib/docker/image/*"
STORAGE = "var/lib/containers/storage/*-images"
STATES = ("var/lib/docker/image", "var/lib/containers/storage")
ASKS = "NVIDIA_VISIBLE_DEVICES=all"
FILES = 2000
NAMED = 3


def check(settings: Config, *, is_default: bool, host: str = "/") -> Part:
    """Check whether an image alone could give a container all GPUs.

    Args:
        is_default: whether an engine starts every container by NVIDIA's runtime.
        host: the folder with var.
    """
    root = host.rstrip("/")
    names = sorted({*_docker(root), *_storage(root)})
    if not names:
        for path in STATES:
            if part := unseen("images", Reason.ImagesAskForAll, f"{root}/{path}"):
                return part
        text = "no image of Docker, Podman or CRI-O sets it; those of containerd are not searched"
        return part_of("images", [text], health="absent")
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    things = f"{count(len(names), 'image')} with {ASKS}: {', '.join(names[:NAMED])}{rest}"
    if not settings.accept_envvar_when_unprivileged:
        return part_of("images", [f"{things}; config.toml ignores it"])
    if settings.policy:
        return part_of("images", [f"{things}; the policy decides"])
    severity: Severity = "warning" if is_default else "note"
    how = "every container of them" if is_default else "containers of them with --runtime=nvidia"
    text = f"{things}; {how} get all GPUs"
    found = Finding(reason=Reason.ImagesAskForAll, severity=severity, evidence=text)
    return part_of("images", [text], [found])


def _docker(root: str) -> Iterator[str]:
    for folder in glob.glob(f"{root}/{DOCKER}"):
        listed = read_object(f"{folder}/repositories.json").get("Repositories")
        names = {
            str(digest): str(name)
            for tags in (listed.values() if isinstance(listed, dict) else ())
            for name, digest in (tags.items() if isinstance(tags, dict) else ())
            if "@" not in str(name)
        }
        for path in glob.glob(f"{folder}/imagedb/content/sha256/*")[:FILES]:
            digest = path.rpartition("/")[2]
            if _asks(read_object(path)):
                yield names.get(f"sha256:{digest}", digest[:12])


def _storage(root: str) -> Iterator[str]:
    for folder in glob.glob(f"{root}/{STORAGE}"):
        for image in read_list(f"{folder}/images.json")[:FILES]:
            id_ = str(image.get("id") if isinstance(image, dict) else "")
            # The name of an item of big data is its key in base64: containers/storage, images.go.
            key = base64.b64encode(f"sha256:{id_}".encode()).decode()
            if _asks(read_object(f"{folder}/{id_}/={key}")):
                names = image.get("names")
                yield str(names[0]) if isinstance(names, list) and names else id_[:12]


def _asks(document: dict[str, Any]) -> bool:
    config = document.get("config")
    env = config.get("Env") if isinstance(config, dict) else None
    return isinstance(env, list) and ASKS in env
