# SPDX-License-Identifier: Apache-2.0
"""An API server in this process: objects by kind, versions that increase, watches."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from nvct.agent.kubernetes.cluster import (
    CONFLICT,
    NODE,
    NOT_FOUND,
    ClusterError,
    Kind,
    Listing,
    Object,
)

NAME = "node-1"


class FakeApi:
    """Stands for `nvct.agent.kubernetes.cluster.Cluster`.

    Attributes:
        absent: kinds by group and version that the server does not have.
        objects: by plural, namespace and name.
        writes: what was written, as VERB PLURAL/NAME.
        refuses: raised by each request, None if it answers.
        drops: fields of slices and devices that the server does not know.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.absent: set[str] = set()
        self.writes: list[str] = []
        self.refuses: ClusterError | None = None
        self.drops: set[str] = set()
        self._version = 100
        self._log: list[tuple[int, str, str, Object]] = []
        self._change = asyncio.Event()
        self.put(NODE, {"metadata": {"name": NAME, "uid": "node-uid"}})

    def put(self, kind: Kind, manifest: Object, what: str = "") -> Object:
        """Create or change an object, as another client."""
        metadata = manifest["metadata"]
        key = (kind.plural, metadata.get("namespace", ""), metadata["name"])
        self._version += 1
        stored: Object = json.loads(json.dumps(manifest))
        stored["metadata"]["resourceVersion"] = str(self._version)
        self._tell(what or ("MODIFIED" if key in self.objects else "ADDED"), kind, stored)
        self.objects[key] = stored
        return copy.deepcopy(stored)

    def remove(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object, as another client."""
        gone = self.objects.pop((kind.plural, namespace, name))
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", kind, gone)

    def all(self, plural: str) -> list[Object]:
        """Return the objects of a kind."""
        return [copy.deepcopy(one) for key, one in self.objects.items() if key[0] == plural]

    async def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self._check(kind)
        return copy.deepcopy(self.objects.get((kind.plural, namespace, name)))

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Listing:
        assert not namespace
        assert not labels
        self._check(kind)
        found = [one for one in self.all(kind.plural) if _has(one, fields or {})]
        return Listing(found, str(self._version))

    async def apply(self, kind: Kind, manifest: Object, manager: str, part: str = "") -> Object:
        assert manager
        assert not part
        self._check(kind)
        self.writes.append(f"apply {kind.plural}/{manifest['metadata']['name']}")
        spec = copy.deepcopy(manifest.get("spec", {}))
        for entry in (spec, *spec.get("devices", ())):
            for name in self.drops:
                entry.pop(name, None)
        return self.put(kind, {**manifest, "spec": spec})

    async def merge(self, kind: Kind, manifest: Object, manager: str) -> Object:
        """Take a merge patch (RFC 7386), unless the object has changed since it was read."""
        assert manager
        self._check(kind)
        metadata = manifest["metadata"]
        found = self.objects[kind.plural, metadata.get("namespace", ""), metadata["name"]]
        if metadata["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ClusterError("the object has been modified", status=CONFLICT)
        return self.put(kind, _merged(found, manifest))

    async def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        self._check(kind)
        self.writes.append(f"delete {kind.plural}/{name}")
        self.remove(kind, name, namespace)

    async def watch(
        self, kind: Kind, fields: Mapping[str, str], since: str = "", limit_s: float = 300.0
    ) -> AsyncGenerator[tuple[str, Object], None]:
        assert limit_s
        position = 0
        while True:
            self._check(kind)
            self._change.clear()
            news, position = self._log[position:], len(self._log)
            for version, what, plural, found in news:
                if plural == kind.plural and version > int(since) and _has(found, fields):
                    yield what, copy.deepcopy(found)
            await self._change.wait()

    async def changes(self, kind: Kind, name: str) -> AsyncGenerator[Object | None, None]:
        yield await self.find(kind, name)
        async for what, found in self.watch(kind, {"metadata.name": name}, str(self._version)):
            yield None if what == "DELETED" else found

    async def close(self) -> None:
        """Do nothing."""

    def _check(self, kind: Kind) -> None:
        if self.refuses:
            raise self.refuses
        if f"{kind.group}/{kind.version}" in self.absent:
            raise ClusterError(f"no {kind.version}", status=NOT_FOUND)

    def _tell(self, what: str, kind: Kind, found: Object) -> None:
        self._log.append((self._version, what, kind.plural, copy.deepcopy(found)))
        self._change.set()


def _merged(found: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(found, dict):
        return patch
    merged = {**found, **{key: _merged(found.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _has(found: Object, fields: Mapping[str, str]) -> bool:
    for path, value in fields.items():
        place: Any = found
        for part in path.split("."):
            place = place.get(part, {})
        if place != value:
            return False
    return True
