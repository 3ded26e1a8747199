# SPDX-License-Identifier: Apache-2.0
"""What a pod asks the plugin for: CDI names in annotations, volume mounts, a variable.

Annotations are those of the plugin of nvidia-ctk-installer 1.20 (container/runtime/nri): the keys
nvidia.cdi.k8s.io/container.NAME, nvidia.cdi.k8s.io/pod and nvidia.cdi.k8s.io, in this order, with
names and commas. Contract: an unknown name fails the create; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvct.cdi import names
from nvct.config.model import Config
from nvct.container.edits import collect, stored_or_fresh
from nvct.container.plan_devices import PlanDevices
from nvct.container.request import resolve
from nvct.container.request.case import Case, extras_of
from nvct.container.request.model import BY_ANNOTATION, Request
from nvct.container.request.origin import Origin
from nvct.container.request.policy import admits
from nvct.errors import NotPermittedError, RequestError, UnknownDeviceError
from nvct.nri import nri_pb2 as api
from nvct.nri.host import KnownHost
from nvct.oci.bundle import Bundle
from nvct.paths import GPU_KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits

DOMAIN = "nvidia.cdi.k8s.io"
MANAGEMENT = "management.nvidia.com/gpu"


def annotated(
    pod: api.PodSandbox, container: str, allowed: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the key of a pod's annotation for a container, and the names in it; "" for none.

    Args:
        allowed: the namespaces whose pods may name management devices.

    Raises:
        RequestError: a word is not a CDI name.
        NotPermittedError: a word is a management device, which this pod may not have.
    """
    for key in (f"{DOMAIN}/container.{container}", f"{DOMAIN}/pod", DOMAIN):
        if key in pod.annotations:
            words = [word.strip() for word in pod.annotations[key].split(",")]
            for word in words:
                try:
                    names.parse(word)
                except RequestError as error:
                    error.message = f"annotation {key}: {error.message}"
                    raise
                if word.partition("=")[0] == MANAGEMENT and pod.namespace not in allowed:
                    raise NotPermittedError(
                        f"{word} is not for pods of namespace {pod.namespace!r}",
                        hint=f"namespaces that may have it: {', '.join(allowed) or 'none'}",
                    )
            return key, list(dict.fromkeys(words))
    return "", []


def wanted(
    bundle: Bundle,
    key: str,
    words: Sequence[str],
    settings: Config,
    host: KnownHost,
    *,
    takes_variable: bool,
) -> tuple[Request | None, list[str]]:
    """Return the request for CDI names of a container, None if there is none; and notes.

    `key` is that of the annotation with `words`, "" if there is none.

    Raises:
        NvctError: the request is malformed, or the policy denies it.
    """
    origin = Origin(bundle, PlanDevices(settings, host)) if settings.policy else None
    notes: list[str] = []
    request: Request | None
    if key:
        request = named(words, source := BY_ANNOTATION + key)
        case = Case(request, source, {}, settings, origin, privileged=bool(bundle.bounding))
        if settings.policy and not admits(case, notes):
            request = case.given
    else:
        env = bundle.env if takes_variable else []
        request, notes = resolve.resolve_request(
            env, bundle.mounts, {}, bundle.bounding, settings,
            origin=origin, defined=host.defines,
        )  # fmt: skip
    if request is None or request.none:
        return None, notes
    found = [word if "=" in word else f"{GPU_KIND}={word}" for word in request.ids]
    final = named([*found, *extras_of(request)], request.source)
    final.requirements = request.requirements
    return final, notes


def named(names_: Sequence[str], source: str) -> Request:
    """Return a request for CDI names."""
    request = Request(list(names_), source)
    request.mode = "cdi"
    return request


def edits_of(request: Request, settings: Config, host: KnownHost) -> list[Edits]:
    """Return the edits of CDI names.

    Raises:
        NvctError: a name is unknown, or its specification does not fit this host.
    """
    plan = host.plan("registry")
    for name in request.ids:
        if name.partition("=")[0] not in plan["kinds"]:
            raise UnknownDeviceError(
                f"no CDI specification of this node has {name}",
                hint="nvct publish writes one for the GPUs; nvidia-ctk cdi list shows all names",
            )
    return stored_or_fresh(lambda fresh: collect(request, settings, host, fresh=fresh))
