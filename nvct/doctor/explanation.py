# SPDX-License-Identifier: Apache-2.0
"""Explains what a container's create would do: the shim's decision, without its writes.

Cold. Contract: `nvct.container.decide` decides; this module only describes the outcome.
Valid plans are read from the run directory, others are compiled into a temporary folder;
config.json is edited only in memory.
"""

from __future__ import annotations

import json
import os
import posix
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeAlias

from nvct import paths
from nvct.compile import live_host
from nvct.config import load
from nvct.config.model import Config
from nvct.container import leases
from nvct.container.decide import decide, wants_view
from nvct.container.host import Host
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.request.model import BY_ENGINE, VISIBLE_DEVICES, Request, Want
from nvct.container.request.resolve import parse_env
from nvct.container.shim.main import MODES
from nvct.doctor import decisions, messages, outcome, parts
from nvct.doctor.model import Finding
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.errors import HostError, NvctError, line
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import warning_kind
from nvct.launcher import cold
from nvct.oci.bundle import Bundle

Document: TypeAlias = dict[str, Any]  # As JSON has it

SHOWN_VARIABLES = ("CUDA_VERSION", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE")
WORDS_ONLY = "the command line"
VIEW_LATER = "shown is layout classic: the first create makes a plan and the driver's view"


class Clock:
    """Measures steps that follow or interrupt each other."""

    def __init__(self, step: str) -> None:
        # milliseconds by step and by how it got its plan, in the order of their ends
        self.steps: dict[tuple[str, str], float] = {}
        self._step, self._since = step, time.monotonic()

    def end(self, how: str = "", *, then: str = "") -> str:
        """End the current step, start the next one, and return the name of the ended one.

        Time in the step "" does not count.
        """
        key, now = (self._step, how), time.monotonic()
        self.steps[key] = self.steps.pop(key, 0.0) + (now - self._since) * 1000
        self._step, self._since = then, now
        return key[0]

    def to_dicts(self) -> list[dict[str, object]]:
        """Return the steps for JSON."""
        return [
            {"step": step, "how": how, "ms": round(ms, 3)}
            for (step, how), ms in self.steps.items()
            if step
        ]


class Reader(Host):
    """The host as the create lane sees it, without writes."""

    __slots__ = ("clock", "config", "notes", "scratch", "used")

    def __init__(
        self, config: Config, stored: Store, scratch: Store, env: dict[str, str], clock: Clock
    ) -> None:
        super().__init__(stored, env, cold.interpreter())
        self.clock = clock
        self.scratch = scratch
        self.notes: list[str] = []
        self.config = config
        self.used: list[model.Plan] = []

    def plan(self, name: str, *, fresh: bool = False) -> model.Plan:
        """Return a plan as the shim would find it; NvctError if it cannot be compiled."""
        before = self.clock.end(then=f"plan {name}")
        how = "read"
        try:
            plan = None if fresh else self.stored(name)
            if plan is None:
                how = "compiled"
                plan = self._compiled(name, fresh=fresh)
        finally:
            self.clock.end(how, then=before)
        self.used.append(plan)
        return plan

    def choose(self, want: Want, source: str) -> tuple[list[str], str]:
        """Return the devices that the shim would choose, without a lease; HostError if too few."""
        if os.geteuid():
            posix.close(leases.open_folder(leases.folder_of(self.env), create=False))
            self.notes.append("other users' containers are only seen by root, or if they compute")
        before = self.clock.end(then="free GPUs")
        try:
            found, program = self.free(want, source)
            return list(found.values())[: want.count], program
        finally:
            self.clock.end("looked for", then=before)

    def give_back(self) -> None:
        """Do nothing, because nothing was leased."""

    def _compiled(self, name: str, *, fresh: bool) -> model.Plan:
        """Return a plan that is compiled now, without a view of the driver."""
        host = Host(self.scratch, self.env, self.cold)
        host.config_path = self.config_path
        if self.config.wants_view:
            if VIEW_LATER not in self.notes:
                self.notes.append(VIEW_LATER)
            self.scratch.write("config.toml", _as_classic(self.config).encode())
            host.config_path = f"{self.scratch.path}/config.toml"
        plan = host.plan(name, fresh=fresh)
        for spec in plan["specs"]:
            spec["path"] = spec["path"].replace(self.scratch.path, self.store.path)
        return plan


def explain(
    bundle: Bundle, program: str, env: Mapping[str, str], released: Callable[[], str] = lambda: ""
) -> Document:
    """Return what the shim would do with a container; for `released` see `messages.waiting`."""
    clock = Clock("config.toml")
    path = load.path_from(env)
    trouble: NvctError | None = None
    try:
        config = load.load(path)
    except NvctError as error:
        config, trouble = Config(), error
    clock.end()
    config = config.replaced(mode=MODES.get(program) or config.mode)
    document: Document = {
        "nvct-explanation": 1,
        "config": {
            "path": path,
            "read": bool(config.path),
            "program": program,
            "mode": config.mode,
            "layout": config.layout,
            "rules": len(config.policy),
            "warnings": list(config.warnings),
        },
        "asked": asked(bundle, config),
        "privileged": "CAP_SYS_ADMIN" in bundle.bounding,
    }
    with (
        tempfile.TemporaryDirectory(prefix="nvct-explain-") as scratch_folder,
        closing(Store(scratch_folder)) as scratch,
        closing(Store(run_dir(env))) as kept,
    ):
        reader = Reader(config, kept, scratch, dict(env), clock)
        folder = None if bundle.path == WORDS_ONLY else bundle.path.rpartition("/")[0]
        refused = _decide(document, bundle, folder, reader, trouble)
        if refused is not None:
            refused.hint = messages.waiting(refused.hint, released)
        document["error"] = refused and {
            "line": line(program, refused),
            "message": refused.message,
            "hint": refused.hint,
            "code": refused.code,
        }
        notes = [*document["notes"], *reader.notes]
        document["notes"] = [messages.waiting(note, released) for note in notes]
        document["steps"] = clock.to_dicts()
        document["recorded"] = decisions.last(decisions.folders(env), folder) if folder else None
    return document


def _as_classic(config: Config) -> str:
    flat: dict[str, object] = {**config.to_dict(), "layout": "classic"}
    for name in load.COMMA_LISTS:
        flat[name] = ",".join(getattr(config, name))
    lines = [f"{key} = {json.dumps(flat[name])}\n" for key, name in load.KEYS.items()]
    return "".join(lines)


def asked(bundle: Bundle, config: Config) -> list[str]:
    """Return everything in config.json that can affect the request, by precedence."""
    found = [
        f"annotation {key}={value}"
        for key, value in sorted(bundle.annotations.items())
        if key.startswith(tuple(config.annotation_prefixes))
    ]
    if config.accept_volume_mounts:
        places = [str(mount.get("destination")) for mount in bundle.mounts]
        found += [f"volume mount {p}" for p in places if p.startswith(paths.VOLUME_MOUNT_ROOT)]
    variables = parse_env(bundle.env)
    for name in (*config.swarm_resource, VISIBLE_DEVICES, *SHOWN_VARIABLES):
        if name in variables:
            found.append(f"{name}={variables[name]}")
    more = sorted(name for name in variables if name.startswith(("NVIDIA_", "CUDA_VERSION")))
    entries = [f"{name}={variables[name]}" for name in more]
    return [*found, *(entry for entry in entries if entry not in found)]


def _decide(
    document: Document,
    bundle: Bundle,
    folder: str | None,
    reader: Reader,
    trouble: NvctError | None,
) -> NvctError | None:
    """Make the shim's decision, add its outcome to `document`, and return the error or None.

    `folder` is the bundle's; None for a request without a bundle.
    """
    config, clock = reader.config, reader.clock

    def accept(_request: Request) -> None:
        reader.used.clear()  # drop the plans that the policy used
        clock.end(then="devices and files")

    clock.end(then="request and policy")
    decision = decide(bundle, config, reader, folder=folder, trouble=trouble, accept=accept)
    clock.end(then="edits")
    request, error = decision.request, None
    document["asked"] += [f"{BY_ENGINE} {name}" for name in decision.engine]
    try:
        decision.into(bundle, config, None)
        clock.end()
        if request is not None and folder is None and wants_view(bundle, config, decision.notes):
            decision.notes.append(
                "shown is layout classic: whether it is farm depends on the container's root"
            )
        document["inject"] = outcome.injected(bundle)
    except NvctError as caught:
        error = caught
    document["outcome"] = "refused" if error else "GPU" if decision.gives else "untouched"
    why = [] if document["outcome"] == "GPU" else [_finding(decision.notes, error, config)]
    document["findings"] = [finding.to_dict() for finding in why]
    document["policy"] = outcome.policy_steps(decision.origin)
    document["request"] = None if request is None else outcome.request_of(request)
    if request is not None:
        document["requirements"] = outcome.requirements(request, reader.used)
        document["devices"] = outcome.devices(request, reader.used)
        names = [str(one["name"]) for one in document["devices"]]
        document["left out"] = outcome.left_out(request, names, reader.used, config)
    warning = [] if trouble is None or error else [f"warning: {trouble}"]
    lacking = _lacking(config) if document["outcome"] == "GPU" else []
    document["notes"] = [*decision.notes, *warning, *lacking]
    return error


def _finding(notes: list[str], error: NvctError | None, config: Config) -> Finding:
    if error is None:
        return messages.of_no_request(notes)
    is_of_host = error.code == HostError.code
    return messages.of_error(error, _lack(config) if is_of_host else Reason.CreateFailed)


def _lacking(config: Config) -> list[str]:
    """Return the effects of missing driver files, without NVML, which may hang."""
    try:
        inventory = live_host.discover(config, DiscoveryOptions(nvml=None))
    except NvctError:
        return []
    return [text for text in inventory.warnings if warning_kind(text) == "driver"]


def _lack(config: Config) -> Reason:
    """Return the reason for an error with the code `host`, which does not tell it."""
    found = parts.driver(Node(settings=config, env={})).findings
    reasons = (finding.reason for finding in found)
    lacks = (reason for reason in reasons if reason is not Reason.DriverIncomplete)
    return next(lacks, Reason.CreateFailed)


def of_words(
    env: list[str], annotations: Mapping[str, str], mounts: list[str], *, privileged: bool
) -> Bundle:
    """Return the bundle of a container for a request of the command line."""
    root = paths.VOLUME_MOUNT_ROOT
    document = {
        "ociVersion": "1.0.2",
        "process": {
            "env": env,
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if privileged else []},
        },
        "mounts": [
            {
                "source": "/dev/null",
                "destination": word if word.startswith("/") else f"{root}/{word}",
            }
            for word in mounts
        ],
        "annotations": dict(annotations),
        "linux": {"namespaces": [{"type": "pid"}, {"type": "cgroup"}]},
    }
    return Bundle(WORDS_ONLY, json.dumps(document))
