# SPDX-License-Identifier: Apache-2.0
"""Whether a container may have what it asks for: the rules [nvct.policy] of config.toml.

Hot; loaded only where there are rules. A rule is a list of conditions, which all have to hold, and
an outcome; the first rule that holds decides, and where none does the request is allowed.
Contract: a policy never widens a request. A condition about which nothing can be learned counts
against the container: a rule that allows doesn't hold then, one that refuses does. Who asks is
read from what the engine wrote and from the kernel, never from the container's own words.
"""

from __future__ import annotations

from nvct.errors import (
    DocumentError,
    NotPermittedError,
    NvctError,
    UnknownDeviceError,
)
from nvct.oci import jsontext
from nvct.request.conditions import CONDITIONS, CONTAINERD_TYPE, CRIO_TYPE
from nvct.request.resolve import OWN_KIND, RUNTIME_KIND
from nvct.request.visible_devices import is_uuid, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.config.model import Config
    from nvct.request.device_numbers import Nodes
    from nvct.request.origin import Origin
    from nvct.request.resolve import Request

ALLOW, IGNORE, DENY = "allow", "ignore", "deny"
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
AGAIN = "touch config.toml, and it is compiled again"
NOT_CONDITIONS = ("name", "then", "reason")


class Step:
    """One rule that was looked at.

    Attributes:
        rule: its name.
        then: its outcome.
        holds: whether it decides.
        why: the condition because of which it doesn't, or all that hold.
    """

    __slots__ = ("holds", "rule", "then", "why")

    def __init__(self, rule: str, then: str, why: str, *, holds: bool) -> None:
        self.rule = rule
        self.then = then
        self.holds = holds
        self.why = why


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


def admits(case: Case, notes: list[str]) -> bool:
    """Tell whether a container gets what it asks for; False means that it starts without.

    Notes say what was decided, and why.

    Raises:
        NotPermittedError: the policy denies it.
        RequestError: the policy denies it, and it is no device of this node: who has misspelt a
            name has to mend that, not the policy.
        DocumentError: a compiled rule is damaged.
    """
    steps = walk(case)
    if case.origin is not None:
        case.origin.steps = steps
    last = steps[-1]
    if not last.holds:
        notes.append("no rule of the policy holds: allowed")
        return True
    what = f"policy rule {shown(last.rule)}"
    if last.then == ALLOW:
        notes.append(f"{what} allows it: {last.why}")
        return True
    ids = ",".join(case.request.ids) or "none" if case.request else "what is no device"
    asks = f"{case.source} asks for {shown(ids)}"
    reason = _reason(case.config.policy[len(steps) - 1])
    told = f"{last.why}; {reason}" if reason else last.why
    if last.then == IGNORE:
        notes.append(f"{asks}, which is ignored by {what}: {told}")
        return False
    if case.kubernetes and {"image-env", None} & set(case.by):
        # It may come from the image of a pod that wants no GPU: that one has to start.
        notes.append(
            f"{asks}, which is ignored and not denied by {what}, because an image of a pod"
            f" without a GPU may bring it: {told}"
        )
        return False
    _refuse_misspelt(case)
    raise NotPermittedError(
        f"{what} denies {case.source}={shown(ids)}", hint=reason or "nvct explain shows why"
    )


def _refuse_misspelt(case: Case) -> None:
    """Refuse a request that is denied as what it is in the first place, if it is misspelt.

    Raises:
        RequestError: it cannot be understood, or names a device that is not there.
    """
    if case.request is None:
        if case.trouble is not None:
            raise case.trouble
        return
    look_up = case.origin.look_up if case.origin is not None else None
    extras = case.request.extras
    if look_up is None or extras.mig_config or extras.mig_monitor:  # GPUs of another plan
        return
    try:
        look_up(case.request)
    except UnknownDeviceError:
        raise
    except (NvctError, LookupError, TypeError, AttributeError):  # no plan, or a damaged one
        return


def walk(case: Case) -> list[Step]:
    """Return the rules that were looked at, in order; only the last one can hold.

    Raises:
        DocumentError: a compiled rule is damaged.
    """
    steps: list[Step] = []
    for text in case.config.policy:
        rule = _parse(text)
        name, then = str(rule["name"]), str(rule["then"])
        held: list[str] = []
        case.refuses = then != ALLOW
        for key, condition in CONDITIONS.items():
            if key not in rule:
                continue
            holds, seen = condition(rule[key], case)
            if holds is None:
                holds, seen = then != ALLOW, f"{seen}, which counts against it"
            if not holds:
                steps.append(Step(name, then, f"{key}: {seen}", holds=False))
                break
            held.append(f"{key}: {seen}")
        else:
            steps.append(Step(name, then, "; ".join(held) or "it has no conditions", holds=True))
            break
    return steps


def _parse(text: str) -> dict[str, jsontext.Json]:
    rule = jsontext.parse(text, "a compiled rule of the policy")
    if not isinstance(rule, dict) or rule.get("then") not in (ALLOW, IGNORE, DENY):
        raise DocumentError("a compiled rule of the policy is damaged", hint=AGAIN)
    if set(rule) - set(CONDITIONS) - set(NOT_CONDITIONS) or "name" not in rule:
        raise DocumentError("a compiled rule of the policy has an unknown member", hint=AGAIN)
    return rule


def _reason(text: str) -> str:
    return str(_parse(text).get("reason", ""))
