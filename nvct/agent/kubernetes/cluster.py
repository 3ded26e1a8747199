# SPDX-License-Identifier: Apache-2.0
"""The client of the API server, which uses lightkube; each failure is a sentence.

Contract: only this module uses lightkube. Objects are plain dicts, as in JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import httpx2
from lightkube import generic_resource
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.resource import ApiInfo, NamespacedSubResource, ResourceDef
from lightkube.types import PatchType
from msgspec import MsgspecError
from yaml import YAMLError

from nvct.errors import HostError

Object: TypeAlias = dict[str, Any]

sys.modules.setdefault("h2", None)  # type: ignore[arg-type]
"""HTTP/2, 1.4 MB: the client imports it if it can, and no request here uses it."""
TIMEOUT_S = 10.0
WATCH_S = 300.0  # How long one watch lasts
CHUNK = 500  # Objects of one answer to a list
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409
USER = re.compile(r'User "([^"]+)"')  # In the API server's message of status 403
ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):(.+)")


class Kind(NamedTuple):
    """A kind of objects; the core group is ""."""

    group: str
    version: str
    name: str
    plural: str
    is_namespaced: bool


NODE = Kind("", "v1", "Node", "nodes", is_namespaced=False)
POD = Kind("", "v1", "Pod", "pods", is_namespaced=True)
POD_EVICTION = Kind("", "v1", "Eviction", "pods/eviction", is_namespaced=True)
EVENT = Kind("", "v1", "Event", "events", is_namespaced=True)


class Listing(NamedTuple):
    """Objects of a kind, and the version of their list: a watch from there misses no change."""

    objects: list[Object]
    version: str


class ClusterError(HostError):
    """The API server refuses a request with an HTTP status, or does not answer: status 0."""

    code = "cluster"

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Cluster:
    """The API server of one cluster.

    ClusterError if the configuration does not work, or if the server refuses a request or does
    not answer.
    """

    def __init__(self, config: KubeConfig) -> None:
        try:
            # Any: the client's overloads do not take the classes that `_resource` makes.
            self._client: Any = AsyncClient(
                config, timeout=httpx2.Timeout(TIMEOUT_S), trust_env=False
            )
        except (ConfigError, OSError, ValueError) as error:
            raise ClusterError(f"the kubeconfig does not work: {error}") from error
        self._server = str(self._client.config.cluster.server)
        self._users = 1

    def share(self) -> bool:
        """Count one more user, who must also call `close`; return False if it is closed."""
        if self._users:
            self._users += 1
        return self._users > 0

    async def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object, None if there is none."""
        found: Any = None
        with self._errors_of("get", kind, name, may_be_gone=True):
            found = await self._client.get(_resource(kind), name, namespace=namespace or None)
        return None if found is None else dict(found)

    async def find_all(
        self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return the objects of a kind, or those of a namespace that have some labels."""
        return (await self.list(kind, namespace, labels)).objects

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Listing:
        """Return the objects of a kind with some labels and fields, and the list's version."""
        with self._errors_of("list", kind, namespace):
            found = self._client.list(
                _resource(kind), namespace=namespace or None, labels=dict(labels or {}) or None,
                fields=dict(fields or {}) or None, chunk_size=CHUNK,
            )  # fmt: skip
            objects = [dict(each) async for each in found]
            return Listing(objects, found.resourceVersion)

    async def create(self, kind: Kind, manifest: Object) -> Object:
        """Create an object, and return it; status 409 if its name is in use."""
        metadata = manifest["metadata"]
        with self._errors_of("create", kind, metadata["name"]):
            resource: Any = _resource(kind)
            body = resource.from_dict(_typed(kind, manifest))
            return dict(await self._client.create(body, namespace=metadata.get("namespace")))

    async def apply(
        self, kind: Kind, manifest: Object, manager: str, part: Literal["", "status"] = ""
    ) -> Object:
        """Do a server-side apply of an object, and return the result.

        Keys that the manager applied before and leaves out now are removed. Keys of the manifest
        are taken over from other managers. `part`: the status, or "" for everything else.
        """
        return await self._patch(kind, _typed(kind, manifest), PatchType.APPLY, manager, part)

    async def merge(self, kind: Kind, manifest: Object, manager: str) -> Object:
        """Apply a JSON merge patch; return the object; status 409 for an older resourceVersion."""
        return await self._patch(kind, manifest, PatchType.MERGE, manager)

    async def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object, if there is one."""
        with self._errors_of("delete", kind, name, may_be_gone=True):
            await self._client.delete(_resource(kind), name, namespace=namespace or None)

    async def evict(self, namespace: str, name: str, uid: str = "") -> None:
        """Evict a pod; a missing pod is not an error.

        Status 429 if a PodDisruptionBudget forbids it, 409 if `uid` is given and the pod has
        another one.
        """
        resource: Any = _eviction()
        manifest: Object = {"metadata": {"name": name, "namespace": namespace}}
        if uid:
            manifest["deleteOptions"] = {"preconditions": {"uid": uid}}
        with self._errors_of("create", POD_EVICTION, name, may_be_gone=True):
            body = resource.from_dict(manifest)
            await self._client.create(body, name=name, namespace=namespace)

    async def changes(
        self, kind: Kind, name: str, limit_s: float = WATCH_S
    ) -> AsyncGenerator[Object | None, None]:
        """Yield an object as it is now, and after each change; None if it is deleted.

        The watch ends after the limit, or if the server is silent for that time; the
        caller calls this again to continue.
        """
        watch = self.watch(kind, {"metadata.name": name}, limit_s=limit_s)
        async with contextlib.aclosing(watch) as changes:
            async for what, found in changes:
                yield None if what == "DELETED" else found

    async def watch(
        self, kind: Kind, fields: Mapping[str, str], since: str = "", limit_s: float = WATCH_S
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield each change of the objects with some fields: ADDED, MODIFIED or DELETED.

        Without the version of a list to continue from, all objects come first, as ADDED. The watch
        ends after the limit, or if the server is silent for that time.
        """
        stream = self._client.watch(
            _resource(kind), fields=dict(fields), server_timeout=int(limit_s),
            resource_version=since or None,
        )  # fmt: skip
        end = time.monotonic() + limit_s
        try:
            while True:
                step = asyncio.ensure_future(anext(stream))
                try:
                    await asyncio.wait([step], timeout=end - time.monotonic())
                finally:
                    if not step.done():
                        step.cancel()
                        await asyncio.gather(step, return_exceptions=True)
                if step.cancelled():
                    return
                what, found = step.result()
                yield what, dict(found)
        except StopAsyncIteration:
            return
        except Exception as error:
            name = ", ".join(f"{key}={value}" for key, value in fields.items())
            raise self._failure(error, "watch", kind, name) from error
        finally:
            await stream.aclose()

    async def close(self) -> None:
        """Close the connections, unless there is another user."""
        self._users -= 1
        if not self._users:
            await self._client.close()

    async def _patch(
        self, kind: Kind, manifest: Object, how: PatchType, manager: str, part: str = ""
    ) -> Object:
        metadata = manifest["metadata"]
        resource: Any = _resource(kind)
        with self._errors_of("patch", kind, metadata["name"]):
            patched = await self._client.patch(
                resource.Status if part else resource, metadata["name"], manifest,
                namespace=metadata.get("namespace"), patch_type=how, field_manager=manager,
                force=True,
            )  # fmt: skip
            return dict(patched)

    @contextlib.contextmanager
    def _errors_of(
        self, verb: str, kind: Kind, name: str, *, may_be_gone: bool = False
    ) -> Iterator[None]:
        """Raise ClusterError if the request fails; not for a missing object if it may be gone."""
        try:
            yield
        except Exception as error:
            failure = self._failure(error, verb, kind, name)
            if failure.status != NOT_FOUND or not may_be_gone:
                raise failure from error

    def _failure(self, error: Exception, verb: str, kind: Kind, name: str) -> ClusterError:
        """Return the error of a failed request; raise any other error again."""
        if isinstance(error, ApiError):
            return refusal(error.response.status_code, str(error), verb, kind, name)
        if isinstance(error, httpx2.HTTPStatusError):  # of a stream, or not from Kubernetes
            status = error.response.status_code
            lacks = f'User "this account" cannot {verb} resource "{kind.plural}"'
            text = lacks if status == FORBIDDEN else f"HTTP status {status}"
            return refusal(status, text, verb, kind, name)
        if isinstance(error, (httpx2.HTTPError, ConfigError, OSError)):
            reason = str(error) or type(error).__name__
            return ClusterError(
                f"the API server {self._server} does not answer: {reason}",
                hint="check whether a NetworkPolicy, proxy or firewall is in between",
            )
        if isinstance(error, (MsgspecError, TypeError, ValueError)):
            return ClusterError(f"the API server {self._server} gives a malformed answer: {error}")
        raise error


def connect(kubeconfig: str, env: Mapping[str, str]) -> Cluster:
    """Return the cluster of a kubeconfig file, or that of this pod's service account.

    ClusterError if there is neither, or the file is malformed.
    """
    try:
        if kubeconfig:
            return Cluster(KubeConfig.from_file(kubeconfig))
        if "KUBERNETES_SERVICE_HOST" not in env:
            raise ClusterError(
                "this is not a pod of a cluster, and no kubeconfig is given",
                hint="name one by KUBECONFIG",
            )
        return Cluster(KubeConfig.from_service_account())
    except ConfigError as error:
        raise ClusterError(
            f"there is no access to the cluster: {error}",
            hint="name another file by KUBECONFIG"
            if kubeconfig
            else "does the pod have a service account's token (automountServiceAccountToken)?",
        ) from error
    except YAMLError as error:
        problem = " ".join(str(error).split())
        raise ClusterError(f"kubeconfig {kubeconfig} is not YAML: {problem}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # a malformed file
        raise ClusterError(f"kubeconfig {kubeconfig} is malformed: {error}") from error


def refusal(status: int, message: str, verb: str, kind: Kind, name: str) -> ClusterError:
    """Return the error for a status and message that the API server has answered."""
    of_group = f" of group {kind.group}" if kind.group else ""
    what = f"{kind.plural}{of_group}"
    if status == FORBIDDEN and USER.search(message):
        match = USER.search(message)
        user = match[1] if match else ""
        account = ACCOUNT.fullmatch(user)
        who = f"service account {account[2]} of namespace {account[1]}" if account else user
        role = "Role" if kind.is_namespaced else "ClusterRole"
        return ClusterError(
            f"{who} may not {_verb(message) or verb} {what}",
            hint=f"an administrator of the cluster must grant it by a {role}: verb "
            f"{_verb(message) or verb}, resource {kind.plural}, apiGroup {kind.group!r}",
            status=status,
        )
    if status == UNAUTHORIZED:
        return ClusterError(
            "the API server does not accept the token", hint="it may be expired", status=status
        )
    if status == NOT_FOUND:
        return ClusterError(f"the cluster has no {name} among its {what}", status=status)
    return ClusterError(
        f"the API server refuses to {verb} {kind.name} {name}: {message}", status=status
    )


def _typed(kind: Kind, manifest: Object) -> Object:
    """Return an object with its apiVersion and kind."""
    version = f"{kind.group}/{kind.version}".lstrip("/")
    return {"apiVersion": version, "kind": kind.name, **manifest}


def _verb(message: str) -> str:
    """Return the verb that the server names: a patch of a missing object is a create."""
    match = re.search(r'cannot (\w+) resource "', message)
    return match[1] if match else ""


@cache
def _eviction() -> type:
    """Return lightkube's class for a pod's eviction, which has no class of its own there."""
    info = ApiInfo(
        resource=ResourceDef("policy", "v1", "Eviction"), parent=ResourceDef("", "v1", "Pod"),
        plural="pods", verbs=["post"], action="eviction",
    )  # fmt: skip
    bases = (NamespacedSubResource, generic_resource.Generic)
    return type("Eviction", bases, {"_api_info": info})


@cache  # lightkube registers a class once
def _resource(kind: Kind) -> type:
    make = (
        generic_resource.create_namespaced_resource
        if kind.is_namespaced
        else generic_resource.create_global_resource
    )
    return make(kind.group, kind.version, kind.name, kind.plural)
