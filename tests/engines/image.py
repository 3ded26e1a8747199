# SPDX-License-Identifier: Apache-2.0
"""Builds an image from a folder, without a registry: an archive for `docker load` and `ctr`."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
REGISTRY = "docker.io/library/"
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def archive(
    root: Path,
    name: str,
    path: Path,
    env: Sequence[str] = (),
    command: Sequence[str] = ("/bin/sh",),
) -> None:
    """Write the archive of an image of one layer.

    Args:
        root: the folder that becomes the layer.
        name: the image's, with its tag; without a registry, it is Docker's.
        path: of the archive.
        env: variables of the image, besides PATH.
        command: of the image.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, ".")
    layer = packed.getvalue()
    config = _json(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Env": [PATH, *env], "Cmd": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            "history": [{"created_by": "a test"}],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER, layer)],
        }
    )
    names = {
        "io.containerd.image.name": name if "/" in name else REGISTRY + name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [{**_descriptor(MANIFEST, manifest), "annotations": names}],
    }
    docker = [{"Config": _blob(config), "RepoTags": [name], "Layers": [_blob(layer)]}]
    with tarfile.open(path, "w") as tar:
        for member, data in (
            ("oci-layout", _json({"imageLayoutVersion": "1.0.0"})),
            (_blob(layer), layer),
            (_blob(config), config),
            (_blob(manifest), manifest),
            ("index.json", _json(index)),
            ("manifest.json", _json(docker)),
        ):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(data: bytes) -> str:
    return "blobs/" + _digest(data).replace(":", "/")


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}
