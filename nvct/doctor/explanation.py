# SPDX-License-Identifier: Apache-2.0
"""Explains the result of a container's create: the shim's decision, without its writes.

Cold. Contract: `nvct.container.decide` decides; this module only describes the outcome.
Valid plans are read from the run directory, others are compiled into a temporary folder;
config.json is edited only in memory.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

from nvct import paths
from nvct.config import load
from nvct.config.model import Config
from nvct.container.decide import decide, wants_view
from nvct.container.host import Host
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.request.model import OWN_KIND, RUNTIME_KIND, VISIBLE_DEVICES, Request
from nvct.container.request.origin import Origin
from nvct.container.request.requirements import holds
from nvct.container.request.resolve import parse_env
from nvct.doctor import decisions, left_out
from nvct.doctor.reasons import Reason
from nvct.doctor.step_clock import Clock
from nvct.errors import HostError, NvctError, line
from nvct.launcher import cold
from nvct.oci.bundle import Bundle

SHOWN_VARIABLES = ("CUDA_VERSION", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE")
WORDS_ONLY = "the command line"
FEATURE_WORDS = ("gds", "mofed", "gdrcopy", "nvswitch", "imex", "mig_config", "mig_monitor")


class Reader(Host):
    """The host as the create lane sees it, without writes.

    Attributes:
        clock: measures how long plans take.
        notes: differences from a create.
        used: the plans that were requested, in order.
        scratch: the store of newly compiled plans.
    """

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
        """Return a plan as the shim would find it.

        Raises:
            NvctError: the plan cannot be compiled.
        """
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

    def _compiled(self, name: str, *, fresh: bool) -> model.Plan:
        """Return a plan that is compiled aside.

        Raises:
            NvctError: it cannot be compiled.
        """
        host = Host(self.scratch, self.env, self.cold)
        host.config_path = self._compile_from()
        plan = host.plan(name, fresh=fresh)
        for spec in plan["specs"]:
            spec["path"] = spec["path"].replace(self.scratch.path, self.store.path)
        return plan

    def _compile_from(self) -> str:
        """Return the path of a config.toml under which a compile makes no view of the driver."""
        if not self.config.wants_view:
            return self.config_path
        note = "no plan is kept: the first create makes the driver's view; shown is layout classic"
        if note not in self.notes:
            self.notes.append(note)
        self.scratch.write("config.toml", _as_classic(self.config).encode())
        return f"{self.scratch.path}/config.toml"


def explain(bundle: Bundle, program: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the shim would do with a container, as plain data.

    Args:
        bundle: the container's config.json.
        program: the shim's name, which may set the mode.
        env: the environment, which names config.toml and the run directory.
    """
    from nvct.container.shim.main import MODES

    clock = Clock("config.toml")
    path = load.path_from(env)
    trouble: NvctError | None = None
    try:
        config = load.load(path)
    except NvctError as error:
        config, trouble = Config(), error
    clock.end()
    config = config.replaced(mode=MODES.get(program) or config.mode)
    told: dict[str, Any] = {
        "nvct-explanation": 1,
        "config": _config(config, path, program),
        "asked": asked(bundle, config),
        "privileged": "CAP_SYS_ADMIN" in bundle.bounding,
    }
    kept = Store(run_dir(env))
    with tempfile.TemporaryDirectory(prefix="nvct-explain-") as folder:
        scratch = Store(folder)
        try:
            reader = Reader(config, kept, scratch, dict(env), clock)
            _decide(told, bundle, config, reader, trouble=trouble, program=program)
            told["notes"] += reader.notes
            told["steps"] = clock.to_dicts()
            where, places = _folder(bundle), decisions.folders(env)
            told["recorded"] = decisions.last(places, where) if where else None
        finally:
            scratch.close()
            kept.close()
    return told


def _as_classic(config: Config) -> str:
    """Return a configuration as TOML, with layout classic and without the policy."""
    flat: dict[str, object] = {**config.to_dict(), "layout": "classic"}
    for name in load.COMMA_LISTS:
        flat[name] = ",".join(getattr(config, name))
    lines = [f"{key} = {json.dumps(flat[name])}\n" for key, name in load.KEYS.items()]
    return "".join(lines)


def _config(config: Config, path: str, program: str) -> dict[str, object]:
    return {
        "path": path,
        "read": bool(config.path),
        "program": program,
        "mode": config.mode,
        "layout": config.layout,
        "rules": len(config.policy),
        "warnings": list(config.warnings),
    }


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
    told: dict[str, Any],
    bundle: Bundle,
    config: Config,
    reader: Reader,
    *,
    trouble: NvctError | None,
    program: str,
) -> None:
    """Make the shim's decision and add its outcome to `told`."""
    folder, clock = _folder(bundle), reader.clock

    def accept(_request: Request) -> None:
        reader.used.clear()  # drop the plans that the policy used
        clock.end(then="devices and files")

    clock.begin("request and policy")
    decision = decide(bundle, config, reader, folder=folder, trouble=trouble, accept=accept)
    clock.end(then="edits")
    request, error = decision.request, None
    try:
        decision.into(bundle, config, None)
        clock.end()
        if request is not None and folder is None and wants_view(bundle, config, decision.notes):
            decision.notes.append(
                "layout farm is chosen by the container's root; shown is classic"
            )
        told["inject"] = _injected(bundle)
    except NvctError as caught:
        error = caught
    told["outcome"] = "refused" if error else "GPU" if request else "untouched"
    told["findings"] = [] if told["outcome"] == "GPU" else _findings(decision.notes, error, config)
    told["policy"] = _steps(decision.origin)
    told["request"] = None if request is None else _request(request)
    if request is not None:
        told["requirements"] = _requirements(request, reader.used)
        told["devices"] = _devices(request, reader.used)
        names = [str(one["name"]) for one in told["devices"]]
        told["left out"] = left_out.by_capability(request, names, reader.used, config)
    warning = [] if trouble is None or error else [f"warning: {trouble}"]
    lacking = _lacking(config) if told["outcome"] == "GPU" else []
    told["notes"] = [*decision.notes, *warning, *lacking]
    told["error"] = None if error is None else _error(error, program)


def _folder(bundle: Bundle) -> str | None:
    """Return the folder of a bundle; None if there is only a request."""
    return None if bundle.path == WORDS_ONLY else bundle.path.rpartition("/")[0]


def _findings(notes: list[str], error: NvctError | None, config: Config) -> list[dict[str, str]]:
    """Return why the container gets no GPU."""
    from nvct.doctor import refusals

    if error is None:
        return [refusals.of_no_request(notes).to_dict()]
    otherwise = Reason.CreateFailed if error.code != HostError.code else _lack(config)
    return [refusals.of_error(error, otherwise).to_dict()]


def _lacking(config: Config) -> list[str]:
    """Return the effects of missing driver files; NVML, which may hang, is not asked."""
    from nvct.compile import live_host
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import warning_kind

    try:
        inventory = live_host.discover(config, DiscoveryOptions(nvml=None))
    except NvctError:
        return []
    return [text for text in inventory.warnings if warning_kind(text) == "driver"]


def _lack(config: Config) -> Reason:
    """Return what the host lacks, which errors of code `host` do not tell."""
    from nvct.doctor import parts

    part, _ = parts.driver(config)
    reasons = (finding.reason for finding in part.findings)
    lacks = (reason for reason in reasons if reason is not Reason.DriverIncomplete)
    return next(lacks, Reason.CreateFailed)


def _error(error: NvctError, program: str) -> dict[str, str]:
    return {
        "line": line(program, error),
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
    }


def _steps(origin: Origin | None) -> list[dict[str, object]]:
    steps = [] if origin is None else origin.results
    return [
        {"rule": one.rule, "then": one.then, "holds": one.holds, "why": one.why} for one in steps
    ]


def _request(request: Request) -> dict[str, object]:
    extras = request.extras
    return {
        "source": request.source,
        "ids": request.ids,
        "mode": request.mode,
        "capabilities": request.capabilities,
        "besides": [word for word in FEATURE_WORDS if getattr(extras, word)],
    }


def _requirements(request: Request, plans: list[model.Plan]) -> list[dict[str, object]]:
    """Return each requirement, the values that it is compared with, and whether it holds.

    Brand and architecture are compared for each requested GPU.
    """
    host = plans[0]["host"] if plans else {}
    facts = [{**host, **gpu} for gpu in _gpus(request, plans)] or [dict(host)]
    told: list[dict[str, object]] = []
    for name, expression in request.requirements:
        try:
            met: bool | None = all(holds(expression, one, name) for one in facts)
        except NvctError:
            met = None
        told.append({"variable": name, "expression": expression, "host": facts, "holds": met})
    return told


def _gpus(request: Request, plans: list[model.Plan]) -> list[dict[str, str]]:
    """Return the known properties of the requested GPUs, without duplicates."""
    found: list[dict[str, str]] = []
    for plan in plans:
        known: dict[str, dict[str, str]] = plan.get("gpus", {})  # type: ignore[assignment]  # one plan alone has them
        for word in request.ids:
            device = word.rpartition("=")[2]
            for gpu in known.values() if device == "all" else [known.get(device, {})]:
                if gpu and gpu not in found:
                    found.append(gpu)
    return found


def _devices(request: Request, plans: list[model.Plan]) -> list[dict[str, str | None]]:
    """Return the requested devices, and the CDI spec that defines each."""
    kind = OWN_KIND if request.kind == RUNTIME_KIND else request.kind
    found: list[dict[str, str | None]] = []
    for word in request.ids:
        name = word if "=" in word else f"{kind}={word}"
        spec = None
        for plan in plans:
            device = plan["devices"].get(name)
            if device is not None:
                spec = plan["specs"][device["spec"]]["path"]
        found.append({"name": name, "spec": spec})
    return found


def _injected(bundle: Bundle) -> dict[str, list[Any]]:
    """Return what the edits add to config.json, and the prestart hooks that they remove."""
    before = json.loads(bundle.document.text)
    after = json.loads(bundle.document.render())
    points = after.get("hooks")
    hooks = {
        point: _new(before, after, "hooks", point)
        for point in (points if isinstance(points, dict) else ())
    }
    return {
        "env": _new(before, after, "process", "env"),
        "nodes": _new(before, after, "linux", "devices"),
        "rules": _new(before, after, "linux", "resources", "devices"),
        "mounts": _new(before, after, "mounts"),
        "hooks": [
            {"point": point, **hook}
            for point, new in hooks.items()
            for hook in new
            if isinstance(hook, dict)
        ],
        "gids": _new(before, after, "process", "user", "additionalGids"),
        "removed hooks": _new(after, before, "hooks", "prestart"),
    }


def _new(before: Any, after: Any, *path: str) -> list[Any]:  # noqa: ANN401  a config.json
    had, has = before, after
    for key in path:
        had = had.get(key) if isinstance(had, dict) else None
        has = has.get(key) if isinstance(has, dict) else None
    old = {json.dumps(item, sort_keys=True) for item in _listed(had)}
    return [item for item in _listed(has) if json.dumps(item, sort_keys=True) not in old]


def _listed(value: Any) -> list[Any]:  # noqa: ANN401  a config.json
    return value if isinstance(value, list) else []


def of_words(
    env: list[str], annotations: Mapping[str, str], mounts: list[str], *, privileged: bool
) -> Bundle:
    """Return the bundle of a container that has only a request."""
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
    }
    return Bundle(WORDS_ONLY, json.dumps(document))
