# SPDX-License-Identifier: Apache-2.0
"""The facts that policy rules test: a request, its source and its origin.

Hot; loaded only if the policy has rules.
"""

from __future__ import annotations

from nvct.container.request.model import (
    BY_ANNOTATION,
    BY_ENGINE,
    FEATURES,
    MIG_CAPABILITIES,
    OWN_KIND,
    RUNTIME_KIND,
)
from nvct.container.request.visible_devices import is_uuid
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvct.config.model import Config
    from nvct.container.plan_devices import PlanDevices
    from nvct.container.request.device_numbers import Nodes
    from nvct.container.request.kubelet_record import Answer
    from nvct.container.request.model import Request
    from nvct.container.request.origin import Origin

IMEX_KIND = "nvidia.com/imex-channel"
EXTRA_NAMES = {
    **{name: f"nvidia.com/mig={name.removeprefix('mig_')}" for name in MIG_CAPABILITIES},
    **{name: f"nvidia.com/{name}=all" for name in FEATURES},
}
KUBELET_CGROUP = "kubepods"
CONTAINERD_TYPE = "io.kubernetes.cri.container-type"
CONTAINERD_NAMESPACE = "io.kubernetes.cri.sandbox-namespace"
CRIO_TYPE = "io.kubernetes.cri-o.ContainerType"
CRIO_NAMESPACE = "io.kubernetes.pod.namespace"
CONTAINERD_NAME = "io.kubernetes.cri.container-name"
CRIO_NAME = "io.kubernetes.container.name"
"""Annotations that the two engines add after those of the pod's author (containerd 2.1
internal/cri/annotations; CRI-O 1.33 SpecAddAnnotations, labels of the kubelet). CRI-O passes
annotations of the pod on, so a pod can forge those of containerd there."""


class Case:
    """A request and everything that rules can test about it."""

    __slots__ = (
        "_injected", "annotations", "config", "error", "given", "given_error", "origin", "parse",
        "privileged", "refuses", "request", "source", "way",
    )  # fmt: skip

    def __init__(
        self,
        request: Request | None,
        source: str,
        annotations: Mapping[str, object],
        config: Config,
        origin: Origin | None,
        *,
        privileged: bool,
    ) -> None:
        self.request = request  # None if it is malformed
        # why the request is malformed or cannot be met; set by callers
        self.error: NvctError | None = None
        self.refuses = False  # the current rule ignores or denies; set by callers
        # what the kubelet has given the container by variables, mounts or annotations, once a rule
        # has asked for it; None for nothing
        self.given: Request | None = None
        self.given_error: NvctError | None = None  # why `given` is unknown
        # returns the request of a device plugin's answer; set by callers
        self.parse: Callable[[Answer], Request | None] | None = None
        self._injected: Nodes | None = None
        self.source = source  # the variable, annotation or mount that carries the request
        self.way = ""  # how an engine gives the devices, in words; "" for other sources
        # of config.json; those of the origin if it is known
        self.annotations = annotations if origin is None else origin.annotations
        self.config = config
        self.origin = origin
        self.privileged = privileged

    @property
    def kubernetes(self) -> bool:
        """Whether the container belongs to a pod, or claims to."""
        return self.is_kubelets or self.is_annotated

    @property
    def is_annotated(self) -> bool:
        """Whether annotations say that the container belongs to a pod; anyone can set them."""
        return CONTAINERD_TYPE in self.annotations or CRIO_TYPE in self.annotations

    @property
    def is_kubelets(self) -> bool:
        """Whether config.json puts the container into a cgroup of the kubelet.

        The cgroup is a path, "/kubepods/burstable/pod1/2", or SLICE:PREFIX:NAME of systemd with a
        slice such as kubepods-burstable-pod1.slice. The cgroup root of the kubelet may precede it.
        """
        if self.origin is None:
            return False
        folders = self.origin.cgroup.partition(":")[0].split("/")
        return any(KUBELET_CGROUP in name.removesuffix(".slice").split("-") for name in folders)

    def ask_kubelet(self, folder: str) -> str:
        """Set `given` to what the kubelet gave; return why the container is not its own, or ""."""
        from nvct.container.request import kubelet_record  # few rules ask

        uid = ""
        if self.origin is not None and self.is_kubelets:
            uid = kubelet_record.pod_uid(self.origin.cgroup)
        if not uid or self.parse is None:
            return "its cgroup is not that of a pod's container"
        name = self.annotations.get(CRIO_NAME, self.annotations.get(CONTAINERD_NAME))
        try:
            answers = kubelet_record.read(folder, uid)
            claimed = kubelet_record.claimed(folder, uid)
            if isinstance(name, str):
                answers = {name: answers.get(name, kubelet_record.Answer())}
            elif claimed and not answers:
                answers = {"": kubelet_record.Answer()}
            for answer in answers.values():
                answer.names += claimed
            if isinstance(name, str):
                self.given = self.parse(answers[name])
                return ""
            for answer in answers.values():  # Docker names no container
                self.given = self.parse(answer)
                if self.is_given:
                    return ""
            self.given = None
        except NvctError as error:
            self.given_error = error
        return ""

    @property
    def is_given(self) -> bool:
        """Whether the kubelet gave everything that the request asks for."""
        request, given = self.request, self.given
        if request is None or given is None or request.kind != given.kind:
            return False
        extras = set(self.extras) <= set(extras_of(given))
        return extras and request.none == given.none and set(request.ids) <= set(given.ids)

    @property
    def by(self) -> list[str | None]:
        """The values of condition `by` that hold; None stands for an unknown one."""
        request = self.request
        if self.source == BY_ENGINE:
            return ["engine"]
        words: list[str | None] = []
        if self.source.startswith(BY_ANNOTATION):
            words.append("annotation")
        elif self.source == "volume mount":
            words.append("mount")
        else:
            words.append("env")
            if request is None:
                words.append(None)
            elif request.free or not (request.ids and all(map(_is_specific, request.ids))):
                words.append("image-env")
        if request is not None and request.qualified:
            words.append("cdi-name")
        return words

    @property
    def names(self) -> list[str]:
        """The full CDI names of the devices."""
        if self.request is None:
            return []
        kind = OWN_KIND if self.request.kind == RUNTIME_KIND else self.request.kind
        return [word if "=" in word else f"{kind}={word}" for word in self.request.ids]

    @property
    def extras(self) -> list[str]:
        """The CDI names, as in plans, of the requested extras."""
        return [] if self.request is None else extras_of(self.request)

    @property
    def plans(self) -> PlanDevices | None:
        """The plans in which rules look devices up; None if there are none."""
        return self.origin.plans if self.origin is not None else None

    @property
    def injected(self) -> Nodes:
        """The device nodes that the container would get; empty if the request fails.

        In that case `error` is set, and the create fails with it.
        """
        if self._injected is None:
            self._injected = {}
            if self.request is not None and self.plans is not None:
                try:
                    self._injected = self.plans.injected(self.request)
                except NvctError as error:
                    self.error = self.error or error
        return self._injected


def extras_of(request: Request) -> list[str]:
    """Return the CDI names of a request's extras."""
    channels = [f"{IMEX_KIND}={number}" for number in request.extras.imex]
    return channels + [name for key, name in EXTRA_NAMES.items() if getattr(request.extras, key)]


def _is_specific(word: str) -> bool:
    """Report whether a word is a UUID, which an image cannot know."""
    return is_uuid(word.partition("=")[2] or word)
