# SPDX-License-Identifier: Apache-2.0
"""How a container was created: its request and who made it, what it got and did not get. Cold.

The shim rewrote the container's config.json, which no longer shows the request. So the request is
reconstructed from the flight recorder, the engine's own files and the rest of config.json. Parts
that none of them has are listed as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from nvct.config.model import Config
from nvct.container.plan import model
from nvct.container.plan.store import Store, run_dir
from nvct.container.recorder import CUT
from nvct.container.request.model import OWN_KIND, VISIBLE_DEVICES, Request
from nvct.doctor import explanation, outcome
from nvct.doctor.decisions import Log
from nvct.doctor.model import count, date
from nvct.engine.engine_files import Creation
from nvct.errors import NvctError
from nvct.oci.bundle import Bundle

PLANS = ("own.plan", "own-none.plan", "own-csv-all.plan", "registry.plan")
INJECTED = f"{VISIBLE_DEVICES}=void"
"""Replaces the request after the shim or a CDI specification served the container."""
OWN_PREFIX = "NVIDIA_CTK_"  # Only specifications set variables with it
RULE = re.compile(r"(?<=.); (?='[^']*' \((?:allow|ignore|deny)\) )")
SLACK_S = 5.0  # Between the start of a container's process and its record, whose clocks differ
NO_BUNDLE = Bundle("", "{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The sources about a container's creation."""

    creation: Creation
    bundle: Bundle  # the current config.json; NO_BUNDLE if there is none
    records: Sequence[Mapping[str, str]]
    log: Log  # all records that are left
    started_s: float | None = None  # start of the first process since the epoch; None if unknown

    @property
    def is_served(self) -> bool:
        """Whether the shim or a specification changed the config.json for a GPU."""
        return INJECTED in self.bundle.env


def reconstructed(
    evidence: Evidence, settings: Config, env: Mapping[str, str]
) -> dict[str, object]:
    """Return how a container was created, as JSON data."""
    record = _record(evidence.records)
    unknown = [] if record else [*_without_record(evidence)]
    if record.get("asked", "").endswith(CUT):
        unknown.append("the end of the request: it is longer than a record keeps")
    leftover, uncertain = _left_out(record, settings, env)
    bundle = evidence.bundle
    return {
        "engine": evidence.creation.engine,
        "image": evidence.creation.image,
        "asked": _asked(evidence, record, settings),
        "privileged": None if bundle is NO_BUNDLE else "CAP_SYS_ADMIN" in bundle.bounding,
        "policy": _policy(record),
        "resolved": _resolved(record),
        "went in": _went_in(bundle, record),
        "left out": leftover,
        "took": record.get("took", ""),
        "steps": record.get("steps", ""),
        "unknown": [*unknown, *uncertain],
    }


def _record(records: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the last recorded decision of runtime or hook about a request, {} without one."""
    found = [record for record in reversed(records) if record.get("bundle")]
    about = (record for record in found if record.get("asked"))
    return next(about, found[0] if found else {})


def _asked(
    evidence: Evidence, record: Mapping[str, str], settings: Config
) -> list[dict[str, str]]:
    """Return each part of the request, and who made it, "" if unknown."""
    creation, source = evidence.creation, ""
    found: dict[str, str] = {}
    if "asked" in record:
        source, _, ids = record["asked"].partition(": ")
        found[f"{source} asks for {ids}"] = _by(source, creation)
    elif (value := creation.value(VISIBLE_DEVICES)) is not None:
        found[f"{VISIBLE_DEVICES}={value}"] = creation.who_set(VISIBLE_DEVICES)
    for word in creation.words:
        # Docker records its default runtime in the same place as a user's choice.
        may_be_default = word.startswith("--runtime ")
        by = "the user, or the engine's default" if may_be_default else "the user"
        found.setdefault(word, by)
    for text in explanation.asked(evidence.bundle, settings):
        name = text.partition("=")[0]
        is_replaced = name == VISIBLE_DEVICES and evidence.is_served
        if not (is_replaced or name == source or _is_injected(name, text, creation)):
            found.setdefault(text, _by(name, creation))
    return [{"text": text, "by": by} for text, by in found.items()]


def _is_injected(name: str, text: str, creation: Creation) -> bool:
    is_variable = " " not in name
    was_asked = creation.env is None or text in creation.env
    return is_variable and (name.startswith(OWN_PREFIX) or not was_asked)


def _by(source: str, creation: Creation) -> str:
    if source.startswith(("annotation ", "volume mount")):
        return "the user" if creation.env is not None else "the pod's author or a device plugin"
    by = creation.who_set(source)
    if by or not creation.words:
        return by
    # Docker adds the variable for --gpus when it writes config.json.
    return "the user" if any(word.startswith("--gpus") for word in creation.words) else ""


def _policy(record: Mapping[str, str]) -> list[str]:
    if "policy" in record:
        return RULE.split(record["policy"])
    if record.get("outcome") == "ignored":
        return [record.get("notes", "")]
    return ["no rules"] if "plan" in record else []


def _resolved(record: Mapping[str, str]) -> list[str]:
    found = [f"mode {record['mode']}"] if "mode" in record else []
    if "capabilities" in record:
        found.append(f"driver capabilities {record['capabilities'].replace(',', ', ') or 'none'}")
    if "besides" in record:
        found.append(f"besides {record['besides'].replace(',', ', ')}")
    if driver := _driver(record):
        found.append(f"driver {driver}")
    if record.get("outcome") == "given" and record.get("notes"):
        found.append(record["notes"])
    return found


def _went_in(bundle: Bundle, record: Mapping[str, str]) -> list[str]:
    found = [record["result"]] if "result" in record else []
    if record.get("nodes"):
        return [*found, record["nodes"]]
    paths = [str(device.get("path")) for device in bundle.objects(("linux", "devices"))]
    nodes = [path for path in paths if path.startswith("/dev/nvidia")]
    return [*found, f"its config.json has {' '.join(nodes)}"] if nodes else found


def _driver(record: Mapping[str, str]) -> str:
    found = (one.partition("/")[2] for one in record.get("plan", "").split())
    return next((version for version in found if version != "0"), "")


def _left_out(
    record: Mapping[str, str], settings: Config, env: Mapping[str, str]
) -> tuple[list[dict[str, object]], list[str]]:
    if record.get("outcome") != "given":
        return [], []
    if "plan" not in record:
        return [], ["what was left out: the record is from an older nvct, which did not keep it"]
    made = {one.partition("/")[0] for one in record["plan"].split()}
    plans = _plans(env)
    same = [plan for plan in plans if str(plan.get("made")) in made]
    request = Request([], "")
    if "capabilities" in record:
        request.capabilities = [one for one in record["capabilities"].split(",") if one]
    names = _names(record, settings)
    used = same or [plan for plan in plans if any(name in plan["devices"] for name in names)]
    if not used:
        return [], ["what was left out: the plan that served it is gone, and no other plan fits"]
    try:
        found = outcome.left_out(request, names, used, settings)
    except (NvctError, LookupError):
        return [], ["what was left out: the plans cannot be read"]
    if same:
        return found, []
    now = next((plan["host"]["driver"] for plan in used if plan["host"].get("driver")), "unknown")
    text = f"what was left out is from the current plan, for driver {now}"
    return found, [f"{text}: the plan that served it, for {_driver(record) or '?'}, is gone"]


def _plans(env: Mapping[str, str]) -> list[model.Plan]:
    with closing(Store(run_dir(env))) as store:
        found = [store.read_json(name) for name in PLANS]
    return [plan for plan in found if plan is not None and "devices" in plan]  # type: ignore[misc]


def _names(record: Mapping[str, str], settings: Config) -> list[str]:
    words = record.get("asked", "").partition(": ")[2].split(", ")
    kinds = dict.fromkeys([OWN_KIND, settings.default_kind])
    return [
        name
        for word in words
        for name in ([word] if "=" in word else [f"{k}={word}" for k in kinds])
    ]


def _without_record(evidence: Evidence) -> Iterator[str]:
    """Yield what is unknown because a request has no record, and why it has none."""
    if evidence.is_served and evidence.creation.env is None:
        yield f"what it asked for: {INJECTED} replaced the request in its config.json"
    yield _why_no_record(evidence)


def _why_no_record(evidence: Evidence) -> str:
    unreadable = [one.folder for one in evidence.log.rings if not one.is_readable]
    if unreadable:
        return f"what was decided: the records in {' and '.join(unreadable)} cannot be read"
    since, records = evidence.started_s, evidence.log.records
    gone = [one for one in evidence.log.rings if not one.is_whole]
    oldest = float(records[0]["time"]) if records else None
    if since is None:
        return "what was decided: nothing is recorded about it; the record may have been replaced"
    if any(OWN_KIND in word for word in evidence.creation.words):
        return "who decided: its engine gave it the device by CDI, which leaves no record"
    if gone and (oldest is None or since < oldest + SLACK_S):
        return (
            f"what was decided: it started at {date(since)}, before the oldest record: newer"
            " records have replaced its own"
        )
    if evidence.is_served:
        return (
            "who decided: its config.json was changed for a GPU, but without a record: its engine"
            " did that by CDI, or the record was removed"
        )
    return (
        f"who decided: it started at {date(since)}, but none of {count(len(records), 'record')} is"
        " about it: it asked for no GPU, its engine gave it one by CDI, or nvct was not installed"
    )
