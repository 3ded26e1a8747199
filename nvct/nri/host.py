# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this host as the plugin knows them, from CDI specifications and procfs, not NVML.

Plans are compiled in memory, and again when a fingerprint no longer matches; nothing is written.
That takes seconds if a specification has thousands of devices. So a thread does it, and a caller
that cannot wait gets an error. A MIG device is known only if a specification has it, such as that
of `nvct publish`. In its pod, the plugin sees only CDI files, device nodes and procfs of the host;
the runtime sees all files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from nvct.cdi.read import load, registry
from nvct.cdi.types import Spec
from nvct.compile import live_host, plans
from nvct.config.model import Config
from nvct.container.host import Host
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import Store
from nvct.container.request.device_numbers import NVIDIA_MAJOR, Device, devices_of
from nvct.errors import HostError
from nvct.host import procfs
from nvct.nri.waiting import Reading
from nvct.paths import CONFIG_ENV, GPU_KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.request.device_numbers import Number

READ_S, FIRST_S = 1.0, 60.0
"""How long a create waits for specifications, because an engine ends a plugin that takes two
seconds; and how long the plugin waits before it connects."""
SPEC_LIMIT = 1 << 20
"""Bytes of a specification: while YAML of that size is parsed, other threads wait some 0.5 s."""
OWN_S = 1.0
"""How long a list of GPUs is used again, because a create asks for it five times."""
NOWHERE = "/nonexistent"
CLAIM = "/claim="
"""In CDI names that a DRA driver makes for claims: k8s.gpu.nvidia.com/claim."""
UUIDS = ("GPU-", "MIG-")


class KnownHost(Host):
    """Access to the plans of this host.

    Attributes:
        sources: sources of the mounts in GPUs' specifications, such as the driver's files.
    """

    def __init__(self, settings: Config, config_path: str) -> None:
        env = {CONFIG_ENV: config_path}
        super().__init__(Store(NOWHERE), env, "", settings.proc_root)
        self._settings = settings
        self._plans: dict[str, model.Plan] = {}
        self._files: dict[str, tuple[fingerprints.Fingerprint, Spec]] = {}
        self._known = plans.Known()
        self._of_gpus: set[str] = set()
        self.sources: set[str] = set()
        self._reading: Reading[model.Plan] | None = None
        self._until = 0.0
        self._has_gpu = super().has_gpu(settings.sys_root)

    def has_gpu(self, sys_root: str) -> bool:  # noqa: ARG002  it is that of config.toml
        """Report whether there was a GPU when this host was made; see `Host.has_gpu`."""
        return self._has_gpu

    def prepare(self) -> None:
        """Compile the plans before somebody waits for them."""
        if self.stored("registry") is None:
            self._reading = Reading(self._registry, FIRST_S)
            self._reading.join(FIRST_S)

    def plan(self, name: str, *, fresh: bool = False) -> model.Plan:
        """Return a plan; see `Host.plan`."""
        plan = None if fresh else self.stored(name)
        if plan is None and name == "registry":
            plan = self._compiled()
        elif plan is None:
            plan = self._plans[name] = self._own()
            self._until = time.monotonic() + OWN_S
        return plan

    def stored(self, name: str) -> model.Plan | None:
        """Return the plan that was compiled before, None if it is stale."""
        named = self._plans.get("registry")
        if named is None or not model.is_current(named):
            return None
        if name == "registry":
            return named
        return self._plans.get(name) if time.monotonic() < self._until else None

    def names(self, nodes: Collection[tuple[int, int]]) -> dict[str, set[tuple[int, int]]]:
        """Return the GPUs and MIG devices that have some of these nodes, by UUID if it is known.

        A GPU is left out if the nodes are those of one of its MIG devices.

        Raises:
            NvctError: the driver's files cannot be read.
        """
        numbers = {("c", *node) for node in nodes}
        if not any(major == NVIDIA_MAJOR for major, _ in nodes):
            return {}
        plan = self.plan("own")
        names: dict[frozenset[Number], str] = {}
        for name, (major, minor) in plan.get("parents", {}).items():
            if name.startswith(UUIDS):
                names[frozenset({("c", major, minor)})] = name
        for device in devices_of(plan):
            if device.is_all or len(device.gpus) != 1:
                continue
            own = frozenset(device.gpus | (device.capabilities if device.is_mig else set()))
            words = [name.partition("=")[2] for name in device.names]
            best = next((word for word in words if word.startswith(UUIDS)), words[0])
            if not names.get(own, "").startswith(UUIDS):
                names[own] = best
        among = [own for own in names if own <= numbers]
        return {
            names[own]: {(major, minor) for _, major, minor in own}
            for own in among
            if not any(own < other for other in among)
        }

    def _compiled(self) -> model.Plan:
        """Return the plan of the CDI folders.

        Raises:
            HostError: reading takes longer than READ_S; it goes on.
        """
        if self._reading is None or not self._reading.is_alive():
            self._reading = Reading(self._registry, READ_S)
        late = f"the CDI specifications take longer than {READ_S:.0f} s to read"
        return self._reading.result(HostError(late, hint="nvct goes on reading: try again"))

    def _registry(self) -> model.Plan:
        """Compile the plan of the CDI folders; read only changed files again."""
        folders = self._settings.spec_dirs
        facts = plans.input_fingerprints(folders)  # before they are read
        of_files = plans.input_fingerprints(registry.spec_paths(folders))
        roots = live_host.roots_of(self._settings)
        now = {str(fact[1]): fact for fact in of_files}
        files: dict[str, tuple[fingerprints.Fingerprint, Spec]] = {}

        def read(path: str) -> Spec:
            fact, spec = self._files.get(path, (None, None))
            if spec is None or path not in now or fact != now[path]:
                spec = load.load_file(path, owned=True, limit=SPEC_LIMIT)
            if path in now:
                files[path] = now[path], spec
            return spec

        found = registry.scan(folders, read)
        plan = plans.compile_registry(
            found, self.config_path, roots, sees_files=False, known=self._known
        )
        plan = {**plan, "facts": [*facts, *of_files, *plans.version_fingerprints(roots)]}
        devices = [Device(plan, name) for name in plan["devices"] if CLAIM not in name]
        self._of_gpus = {d.names[0] for d in devices if d.kind == GPU_KIND or d.gpus}
        self.sources = _sources(plan, self._of_gpus)
        self._files, self._plans["registry"], self._until = files, plan, 0.0
        return plan

    def _own(self) -> model.Plan:
        """Return the plan of the GPUs in specifications, or in procfs if there are none."""
        named = self.plan("registry")
        gpus = [
            gpu for gpu in procfs.gpus(live_host.roots_of(self._settings))
            if gpu.minor is not None and gpu.uuid
        ]  # fmt: skip
        of_gpus = self._of_gpus
        plan: model.Plan = {
            **named, "devices": {n: d for n, d in named["devices"].items() if n in of_gpus},
        }  # fmt: skip
        if GPU_KIND not in named["kinds"]:
            spec: Spec = {"cdiVersion": "0.5.0", "kind": GPU_KIND, "devices": []}
            for index, gpu in enumerate(gpus):
                edits = {"deviceNodes": [{"path": f"/dev/nvidia{gpu.minor}", "type": "c",
                                          "major": NVIDIA_MAJOR, "minor": gpu.minor}]}  # fmt: skip
                spec["devices"] += [
                    {"name": name, "containerEdits": edits}  # type: ignore[typeddict-item]
                    for name in (str(index), gpu.uuid)
                ]
            plan = plans.compile_spec(spec, NOWHERE, self.config_path)
        parents = {
            name: [NVIDIA_MAJOR, gpu.minor]
            for index, gpu in enumerate(gpus)
            for name in (gpu.uuid, str(index), gpu.bus_id)
        }
        return {**plan, "facts": named["facts"], "parents": parents}  # type: ignore[typeddict-item]


def _sources(plan: model.Plan, names: Collection[str]) -> set[str]:
    devices = [plan["devices"][name] for name in names]
    edits = [plan["edits"][index] for index in {device["edits"] for device in devices}]
    edits += [plan["specs"][index]["edits"] for index in {device["spec"] for device in devices}]
    edits += [part for each in edits for part in each.get("parts", {}).values()]
    texts = {text for each in edits for _, text in each["mounts"]}
    return {str(json.loads(text).get("source", "")) for text in texts}
