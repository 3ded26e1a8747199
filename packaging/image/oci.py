# SPDX-License-Identifier: Apache-2.0
"""An OCI archive: an image layout in a tar, with several images that share their layers.

It also has Docker's manifest.json, so that `docker load` and `podman load` take all images.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from layers import Layer

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
REGISTRY = "docker.io/library/"
"""Of names without a registry, as engines complete them."""
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image of the archive.

    Attributes:
        tag: its tag.
        entrypoint: program and arguments.
        env: variables besides PATH.
        labels: of the image and its manifest.
    """

    tag: str
    entrypoint: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def write(
    out: Path,
    name: str,
    images: Sequence[Image],
    layers: Sequence[Layer],
    *,
    machine: str,
    when: int,
) -> None:
    """Write the archive.

    Args:
        out: its path.
        name: of the images, without a tag.
        images: in the order of the index.
        layers: of all images, from the lowest.
        machine: as `uname -m` prints it.
        when: time of the images, in seconds since 1970.
    """
    blobs: dict[str, bytes | Path] = {}
    manifests, saved = [], []
    for image in images:
        config = _json(_config(image, layers, ARCHITECTURES[machine], when))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(CONFIG, config),
                "layers": [
                    {"mediaType": LAYER, "digest": f"sha256:{e.digest}", "size": e.size}
                    for e in layers
                ],
                "annotations": dict(image.labels),
            }
        )
        blobs |= {_blob(_digest(data)): data for data in (config, manifest)}
        annotations = {
            "io.containerd.image.name": f"{REGISTRY}{name}:{image.tag}",
            "org.opencontainers.image.ref.name": image.tag,
        }
        manifests.append({**_descriptor(MANIFEST, manifest), "annotations": annotations})
        saved.append(
            {
                "Config": _blob(_digest(config)),
                "RepoTags": [f"{name}:{image.tag}"],
                "Layers": [_blob(layer.digest) for layer in layers],
            }
        )
    blobs |= {_blob(layer.digest): layer.file for layer in layers}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    members: dict[str, bytes | Path] = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(saved),
        **dict(sorted(blobs.items())),
    }
    aside = out.with_name(f".{out.name}.part")
    with tarfile.open(aside, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in members.items():
            _add(tar, path, content)
    aside.replace(out)


def _config(
    image: Image, layers: Sequence[Layer], architecture: str, when: int
) -> dict[str, object]:
    created = f"{dt.datetime.fromtimestamp(when, tz=dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": "0:0",
            "Env": [PATH, *(f"{key}={value}" for key, value in image.env.items())],
            "Entrypoint": list(image.entrypoint),
            "WorkingDir": "/",
            "Labels": dict(image.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{e.diff_id}" for e in layers]},
        "history": [{"created": created, "created_by": layer.comment} for layer in layers],
    }


def _add(tar: tarfile.TarFile, path: str, content: bytes | Path) -> None:
    info = tarfile.TarInfo(path)
    if isinstance(content, bytes):
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        return
    info.size = content.stat().st_size
    with content.open("rb") as file:
        tar.addfile(info, file)


def _json(document: object) -> bytes:
    return json.dumps(document, indent=1).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}
