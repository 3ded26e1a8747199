# SPDX-License-Identifier: Apache-2.0
"""Finds the pods in a manifest, which may be a list, or of a kind of other software.

A Deployment has one pod template, an MPIJob one for each role, an InferenceService the fields of a
pod beside its own. What has a list of containers is taken for the specification of a pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from nvct.errors import DocumentError

Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The specification of a pod in an object.

    Attributes:
        what: kind and name of the object, for sentences.
        name: of the object, "" if it has none.
        namespace: of the object, "" if it says none.
        spec: the fields of the pod; a part of the manifest, to be changed in place.
    """

    what: str
    name: str
    namespace: str
    spec: Object


def objects(document: object) -> Iterator[Object]:
    """Yield the objects of a manifest: itself, or the items of a list."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if not isinstance(items, list):
        yield document
    for item in items if isinstance(items, list) else ():
        yield from objects(item)


def pod_specs(document: object) -> Iterator[PodSpec]:
    """Yield the pod specs in a manifest."""
    for each in objects(document):
        what, name, namespace = identity(each)
        for spec in _specs(each):
            yield PodSpec(what, name, namespace, spec)


def identity(document: Object) -> tuple[str, str, str]:
    """Return kind and name of an object for sentences, its name, and its namespace."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))
    what = f"{document.get('kind') or 'object'} {name}".rstrip()
    return what, name, str(metadata.get("namespace") or "")


def containers(what: str, spec: Object, *kinds: str) -> list[Object]:
    """Return the containers of a pod, by default the init containers and then the others.

    Raises:
        DocumentError: there is something else in their place.
    """
    return [
        container
        for kind in kinds or ("initContainers", "containers")
        for container in tables(spec.get(kind) or [], f"{what}: {kind}")
    ]


def tables(value: object, what: str) -> list[Object]:
    """Return a list of objects.

    Raises:
        DocumentError: it is something else.
    """
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DocumentError(f"{what} is no list of objects")
    return value


def sequence(value: object, what: str) -> list[object]:
    """Return a list; an empty one for None.

    Raises:
        DocumentError: it is something else.
    """
    if value is not None and not isinstance(value, list):
        raise DocumentError(f"{what} is no list")
    return value or []


def table(value: object, what: str) -> Object:
    """Return an object; an empty one for None.

    Raises:
        DocumentError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DocumentError(f"{what} is no object")
    return value


def _specs(value: object) -> Iterator[Object]:
    if isinstance(value, list):
        for each in value:
            yield from _specs(each)
    elif isinstance(value, dict):
        found = value.get("containers")
        if isinstance(found, list) and any(isinstance(each, dict) for each in found):
            yield value
            return
        for each in value.values():
            yield from _specs(each)
