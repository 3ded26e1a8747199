# SPDX-License-Identifier: Apache-2.0
"""A request and all that rules of the policy can ask about it.

Hot; loaded only where there are rules.
"""

from __future__ import annotations

from nvct.container.request.model import OWN_KIND, RUNTIME_KIND
from nvct.container.request.visible_devices import is_uuid
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.config.model import Config
    from nvct.container.request.device_numbers import Nodes
    from nvct.container.request.model import Request
    from nvct.container.request.origin import Origin

IMEX_KIND = "nvidia.com/imex-channel"
EXTRA_NAMES = {
    "mig_config": "nvidia.com/mig=config",
    "mig_monitor": "nvidia.com/mig=monitor",
    "gds": "nvidia.com/gds=all",
    "mofed": "nvidia.com/mofed=all",
    "gdrcopy": "nvidia.com/gdrcopy=all",
    "nvswitch": "nvidia.com/nvswitch=all",
}
KUBELET_CGROUP = "kubepods"
CONTAINERD_TYPE = "io.kubernetes.cri.container-type"
CONTAINERD_NAMESPACE = "io.kubernetes.cri.sandbox-namespace"
CRIO_TYPE = "io.kubernetes.cri-o.ContainerType"
CRIO_NAMESPACE = "io.kubernetes.pod.namespace"
"""What the two engines write into a container's annotations, behind those that a pod's author may
set (containerd 2.1 internal/cri/annotations; CRI-O 1.33 SpecAddAnnotations, the kubelet's labels).
CRI-O hands a pod's annotations on, so that containerd's can be forged there."""


class Case:
    """A request and all that rules can ask about it.

    Attributes:
        request: None where it could not be understood.
        trouble: why it could not, or cannot be had; to be set.
        refuses: the rule that is looked at refuses; to be set.
        source: what brought it.
        annotations: of config.json; the origin's where there is one.
        privileged: the container has CAP_SYS_ADMIN.
        config: the configuration in force.
        origin: None where nobody knows.
    """

    __slots__ = (
        "_injected", "annotations", "config", "origin", "privileged", "refuses", "request",
        "source", "trouble",
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
        """Keep them."""
        self.request = request
        self.trouble: NvctError | None = None
        self.refuses = False
        self._injected: Nodes | None = None
        self.source = source
        self.annotations = annotations if origin is None else origin.annotations
        self.config = config
        self.origin = origin
        self.privileged = privileged

    @property
    def kubernetes(self) -> bool:
        """Whether the container is, or says that it is, one of a pod's."""
        return self.is_kubelets or self.is_annotated

    @property
    def is_annotated(self) -> bool:
        """Whether annotations say that the container is a pod's; anyone could set them."""
        return CONTAINERD_TYPE in self.annotations or CRIO_TYPE in self.annotations

    @property
    def is_kubelets(self) -> bool:
        """Whether the container is in a cgroup of the kubelet's, as config.json says.

        A path, "/kubepods/burstable/pod1/2", or systemd's SLICE:PREFIX:NAME with a slice like
        kubepods-burstable-pod1.slice; the kubelet's cgroup root may stand before it.
        """
        if self.origin is None:
            return False
        folders = self.origin.cgroup.partition(":")[0].split("/")
        return any(KUBELET_CGROUP in name.removesuffix(".slice").split("-") for name in folders)

    @property
    def by(self) -> list[str | None]:
        """What brings the request, in a rule's words; None for what could not be learned."""
        request = self.request
        words: list[str | None] = []
        if self.source.startswith("annotation "):
            words.append("annotation")
        elif self.source == "volume mount":
            words.append("mount")
        else:
            words.append("env")
            if request is None:
                words.append(None)
            elif not (request.ids and all(map(_is_of_this_node, request.ids))):
                words.append("image-env")
        if request is not None and request.qualified:
            words.append("cdi-name")
        return words

    @property
    def names(self) -> list[str]:
        """The devices' full CDI names."""
        if self.request is None:
            return []
        kind = OWN_KIND if self.request.kind == RUNTIME_KIND else self.request.kind
        return [word if "=" in word else f"{kind}={word}" for word in self.request.ids]

    @property
    def extras(self) -> list[str]:
        """What is asked for besides devices, by the CDI names that it has in plans."""
        if self.request is None:
            return []
        extras = self.request.extras
        found = [f"{IMEX_KIND}={number}" for number in extras.imex]
        return found + [name for key, name in EXTRA_NAMES.items() if getattr(extras, key)]

    @property
    def injected(self) -> Nodes:
        """The device nodes that the container would get; none where it cannot have any.

        Why it cannot is the case's trouble then, with which its create fails.
        """
        if self._injected is None:
            self._injected = {}
            if self.request is not None and self.origin is not None and self.origin.plans:
                try:
                    self._injected = self.origin.plans.injected(self.request)
                except NvctError as error:
                    self.trouble = self.trouble or error
        return self._injected


def _is_of_this_node(word: str) -> bool:
    """Tell whether a word names a device that no image can know: by its UUID."""
    return is_uuid(word.partition("=")[2] or word)
