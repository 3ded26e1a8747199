# SPDX-License-Identifier: Apache-2.0
"""The plugin's answers to an engine: what a container gets, and whether it may have what it has.

An engine with NRI 0.10 (containerd 2.2) asks twice: at CreateContainer for changes, and at
ValidateContainerAdjustment for a verdict about all of them. An older one asks once, before
plugins with a higher index. The verdict is about device numbers, whoever gave them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

from nvct.config.model import CHECKED, Config
from nvct.container import engine_devices
from nvct.container.plan_devices import PlanDevices
from nvct.container.request.conditions import matches
from nvct.container.request.origin import Origin
from nvct.errors import NotPermittedError, NvctError
from nvct.nri import container, requests
from nvct.nri import nri_pb2 as api
from nvct.nri.accounts import Accounts
from nvct.nri.host import KnownHost
from nvct.nri.mounts import Node
from nvct.nri.ttrpc import Methods, sentence
from nvct.oci.bundle import Bundle
from nvct.paths import NRI_DIR

CREATED, POST_CREATED, POST_STARTED, STOPPED, REMOVED, VALIDATE = 4, 5, 7, 10, 11, 14
"""Events of nri/pkg/api."""
ENDED = 4
"""A container's state."""
VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
CONTAINERD_1, CONTAINERD_2 = (1, 7, 30), (2, 1, 0)
"""The first releases that take CDI names from plugins. CRI-O 1.34.0 drops them silently, although
its NRI has the field (server/nri-api.go), so it gets devices and mounts."""
KUBELET = "/var/lib/kubelet"
SOCKETS = "/var/run/nri"

GIVEN = {"name": "given by the kubelet", "then": "allow"}
OTHERS = {
    "name": "pods have what the kubelet gives", "then": "deny",
    "reason": "ask for the GPU in the pod's resources",
}  # fmt: skip

Rule = Literal["off", "audit", "enforce"]
Refusal = tuple[api.PodSandbox, api.Container, NvctError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `nvct-nri`; `sockets` is the folder of the engine's socket for plugins."""

    namespace: str = ""
    management: Sequence[str] = ()
    takes_variable: bool = False
    rule: Rule = "off"
    exempt: Sequence[str] = ("kube-system",)
    kubelet: str = KUBELET
    sockets: str = SOCKETS
    record: str = NRI_DIR


@dataclass
class Plugin:
    """The service Plugin.

    Attributes:
        settings: returns config.toml in force; if it is unreadable, the defaults and the error.
        say: takes a line for the log.
        unasked: engines, with their versions, that refuse a plugin which wants to give verdicts.
            Only trying shows that: even CRI-O 1.34.0 and 1.34.1 have different NRI versions.
        validates: whether the engine asks for a verdict in a request of its own.
        is_configured: whether the engine has asked for the plugin's events.
        is_known: whether the engine has accepted these events.
        resolves: whether the engine takes CDI names.
    """

    settings: Callable[[], tuple[Config, NvctError | None]]
    config_path: str
    options: Options
    say: Callable[[str], None]
    unasked: set[tuple[str, str]] = field(default_factory=set)
    validates: bool = False
    is_configured: bool = False
    is_known: bool = False
    resolves: bool = False
    _engine: tuple[str, str] = field(default=("", ""), init=False)
    _host: KnownHost | None = field(default=None, init=False)
    _config: Config | None = field(default=None, init=False)
    _node: Node = field(init=False)
    _accounts: Accounts = field(init=False)
    _rules: tuple[str, ...] = field(init=False)
    _pods: dict[str, api.PodSandbox] = field(default_factory=dict, init=False)
    _running: list[api.Container] = field(default_factory=list, init=False)
    _refused: list[Refusal] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        given = {**GIVEN, "given-by-kubelet": self.options.kubelet}
        self._rules = json.dumps(given), json.dumps(OTHERS)
        self._accounts = Accounts(self.options.record, self._names, self.say)

    @property
    def methods(self) -> Methods:
        """The methods of the service, by their names."""
        return {
            "Configure": self.configure,
            "Synchronize": self.synchronize,
            "CreateContainer": self.create,
            "ValidateContainerAdjustment": self.validate,
            "PostCreateContainer": partial(self.told, POST_CREATED),
            "PostStartContainer": partial(self.told, POST_STARTED),
            "StopContainer": partial(self.told, STOPPED),
            "RemoveContainer": partial(self.told, REMOVED),
            "StateChange": partial(self.told, None),
            "Shutdown": lambda _: b"",
        }

    def prepare(self) -> None:
        """Read what answers need, before an engine waits for one."""
        self._in_force()[2].prepare()

    def configure(self, payload: bytes) -> bytes:
        """Answer Configure: the events that this engine knows and the plugin wants."""
        request = api.ConfigureRequest.FromString(payload)
        name, version = self._engine = request.runtime_name, request.runtime_version
        numbers = _version(version)
        self.resolves = name == "containerd" and (
            numbers >= CONTAINERD_2 or CONTAINERD_1 <= numbers < (2,)
        )
        self.validates = self._engine not in self.unasked
        self.is_configured, self.is_known = True, False
        self._pods, self._running = {}, []
        events = [CREATED, POST_CREATED, POST_STARTED, STOPPED, REMOVED]
        events += [VALIDATE] if self.validates else []
        return api.ConfigureResponse(
            events=sum(1 << (event - 1) for event in events)
        ).SerializeToString()

    def synchronize(self, payload: bytes) -> bytes:
        """Answer Synchronize, which may come in pieces: running containers are not changed."""
        request = api.SynchronizeRequest.FromString(payload)
        self._pods |= {p.id: container.short_pod(p) for p in request.pods}
        self._running += [
            container.short(each)
            for each in request.containers
            if each.linux.devices and each.state != ENDED
        ]
        if not request.more:
            pods, running = self._pods, self._running
            self._pods, self._running = {}, []
            known = (each for each in running if each.pod_sandbox_id in pods)
            self._accounts.replace((pods[each.pod_sandbox_id], each) for each in known)
            if not self.is_known:
                verdict = "asks for a verdict" if self.validates else "asks for no verdict"
                cdi = "takes CDI names" if self.resolves else "takes no CDI names"
                self.say(f"connected: {' '.join(self._engine)} {verdict}, and {cdi}")
            self.is_known = True
        return api.SynchronizeResponse(more=request.more).SerializeToString()

    def is_refused(self) -> bool:
        """Report whether the engine has refused verdicts; from then on, they are not offered."""
        name, version = self._engine
        is_new = name == "containerd" and _version(version) >= (2, 2)
        if self.validates and not self.is_known and not is_new:
            self.unasked.add(self._engine)
            return True
        return False

    def create(self, payload: bytes) -> bytes:
        """Answer CreateContainer: the devices that the pod asks for.

        Raises:
            NvctError: the container must not be created.
        """
        request = api.CreateContainerRequest.FromString(payload)
        pod, made = request.pod, request.container
        try:
            adjust = self._adjust(pod, made)
            if not self.validates:
                self._judge(pod, made, adjust)
        except NvctError as error:
            self._refused.append((pod, made, error))
            raise
        return api.CreateContainerResponse(adjust=adjust).SerializeToString()

    def validate(self, payload: bytes) -> bytes:
        """Answer ValidateContainerAdjustment."""
        request = api.ValidateContainerAdjustmentRequest.FromString(payload)
        answer = api.ValidateContainerAdjustmentResponse()
        try:
            self._judge(request.pod, request.container, request.adjust)
        except NvctError as error:
            self._refused.append((request.pod, request.container, error))
            answer.reject, answer.reason = True, sentence(error)
        return answer.SerializeToString()

    def told(self, event: int | None, payload: bytes) -> bytes:
        """Record an event, whose answer is empty; None is StateChange, which may be any event.

        An engine reports STOPPED also for a container that has ended by itself.
        """
        kind: Any = api.StateChangeEvent if event is None else api.CreateContainerRequest
        change = kind.FromString(payload)
        event = change.event if event is None else event
        if event == POST_CREATED:
            self._accounts.add(change.pod, change.container)
        elif event == POST_STARTED:
            self._accounts.start(change.pod, change.container)
        elif event in (STOPPED, REMOVED):
            self._accounts.remove(change.container)
        return b""

    def _names(self, nodes: Collection[tuple[int, int]]) -> dict[str, set[tuple[int, int]]]:
        try:
            return self._in_force()[2].names(nodes)
        except NvctError as error:
            self.say(f"the GPUs of a container are not recorded: {error.message}")
            return {}

    def answered(self) -> None:
        """Log and record the refusal in the last answer, which has been sent."""
        for pod, made, error in self._refused:
            self.say(f"refused: {container.name_of(pod, made)}: {error.message}")
            self._accounts.refuse(pod, made, error)
        self._refused.clear()

    def lost(self) -> None:
        """Log a refusal that could not be sent: engines create the container without it."""
        for pod, made, error in self._refused:
            why = "the engine had closed the connection before the answer"
            self.say(f"not refused: {container.name_of(pod, made)}: {why}: {error.message}")
        self._refused.clear()

    def _adjust(self, pod: api.PodSandbox, made: api.Container) -> api.ContainerAdjustment:
        settings, trouble, host = self._in_force()
        allowed = [*filter(None, (self.options.namespace, *self.options.management))]
        key, words = requests.annotated(pod, made.name, allowed)
        takes_variable = self.options.takes_variable
        bundle = container.bundle(pod, made, has_env=takes_variable)
        request, notes = requests.wanted(
            bundle, key, words, settings, host, takes_variable=takes_variable
        )
        about, told = container.name_of(pod, made), "; ".join(notes)
        if request is None:
            if key:
                self.say(f"ignores: {about}: {told}")
            return api.ContainerAdjustment()
        if trouble is not None:
            raise trouble
        edits = requests.edits_of(request, settings, host)
        if not self._accounts.claim(made):
            return api.ContainerAdjustment()
        devices = ", ".join(request.ids)
        self.say(f"adds: {about}: {devices}{told and f': {told}'}")
        self._accounts.begin(made, asked=f"{request.source}: {devices}", notes=told)
        if self.resolves:
            named = [api.CDIDevice(name=name) for name in request.ids]
            return api.ContainerAdjustment(CDI_devices=named)
        if any(edit["gids"] for edit in edits):
            self.say(f"warning: {about} gets no supplementary groups")
        return container.adjustment(edits)

    def _judge(
        self, pod: api.PodSandbox, made: api.Container, adjust: api.ContainerAdjustment
    ) -> None:
        """Apply the rules to everything that a container has and gets.

        Raises:
            NvctError: the container must not be created.
        """
        settings, trouble, host = self._in_force()
        has_rules = bool(settings.policy) or trouble is not None
        is_checked = settings.engine_devices == CHECKED and has_rules
        exempt = [self.options.namespace, *self.options.exempt]
        is_exempt = any(matches(pod.namespace, pattern) for pattern in exempt if pattern)
        rule = "off" if is_exempt else self.options.rule
        names = dict.fromkeys(device.name for device in (*made.CDI_devices, *adjust.CDI_devices))

        @cache
        def judged() -> tuple[Bundle, str]:
            request = requests.named([*names], "CDI names")
            edits = requests.edits_of(request, settings, host) if names else []
            mounts = *made.mounts, *adjust.mounts, *container.mounts(edits)
            found = self._node.judge(pod, mounts, host.sources)
            return container.bundle(pod, made, adjust, edits, found), found[1]

        if is_checked:
            self._check(*judged(), settings, host, trouble)
        try:
            if rule != "off":
                self._check(*judged(), settings.replaced(policy=self._rules), host)
        except NvctError as error:  # also because a device's name is unknown
            if rule == "enforce":
                raise
            self.say(f"audit: {container.name_of(pod, made)}: {error.message}")
            self._accounts.audit(made, error)

    def _check(
        self, bundle: Bundle, way: str, policy: Config, host: KnownHost,
        trouble: NvctError | None = None,
    ) -> None:  # fmt: skip
        """Apply a policy to the devices of a container.

        A refusal names the mount that gives every device, and the kubelet's record if that cannot
        be read.

        Raises:
            NotPermittedError: the policy denies devices, or ignores them: a plugin cannot remove
                them.
            NvctError: a device is unknown.
        """
        notes: list[str] = []
        origin = Origin(bundle, PlanDevices(policy, host))
        try:
            removal = engine_devices.check(
                bundle, policy, host, origin, None, devices=[], notes=notes, trouble=trouble
            )
            problem = NotPermittedError(notes[-1] if notes else "the policy ignores its devices")
        except NotPermittedError as error:
            problem = error
        else:
            if removal is None:
                return
        folder = f"{self.options.kubelet}/"
        why = next((each.why for each in origin.results if folder in each.why), "")
        message = problem.message + (f"; {why}" if why else "")
        problem.message = message.replace(container.IN_WORDS, way or container.IN_WORDS)
        raise problem

    def _in_force(self) -> tuple[Config, NvctError | None, KnownHost]:
        settings, trouble = self.settings()
        if self._host is None or settings is not self._config:
            self._config, self._host = settings, KnownHost(settings, self.config_path)
            further = [self.options.sockets, self.options.record, self.config_path]
            roots = settings.driver_root, settings.dev_root or "/"
            self._node = Node(self.options.kubelet, [*further, *settings.spec_dirs], roots)
        return settings, trouble, self._host


def _version(text: str) -> tuple[int, ...]:
    match = VERSION.match(text)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)
