# SPDX-License-Identifier: Apache-2.0
"""Policies and the plans of a lab: the decision about a container, without a process for each."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from nvct.compile import mode_plans as extras
from nvct.compile import refresh
from nvct.config.load import load
from nvct.config.rules import parse
from nvct.container.decide import Decision, decide
from nvct.container.host import Host
from nvct.container.plan.store import Store
from nvct.errors import NotPermittedError, NvctError
from nvct.oci.bundle import Bundle
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Plan


def nodes(*numbers: tuple[int, int], path: str = "/dev/x") -> dict[str, Any]:
    """Return the edits of a device with nodes of these numbers."""
    return {
        "deviceNodes": [
            {"path": f"{path}{major}-{minor}", "type": "c", "major": major, "minor": minor}
            for major, minor in numbers
        ]
    }


def cap(minor: int) -> dict[str, Any]:
    return {
        "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
        "type": "c",
        "major": 236,
        "minor": minor,
    }


def part(gpu: int, gi: int, ci: int) -> dict[str, Any]:
    """Return the edits of a MIG device."""
    node = {"path": f"/dev/nvidia{gpu}", "type": "c", "major": 195, "minor": gpu}
    return {"deviceNodes": [node, cap(gi), cap(ci)]}


class Compiled(Host):
    """The host of a lab; its plans are compiled once, in this process."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(Store(str(lab.run_dir)), lab.env, lab.cold, str(lab.home / "proc"))
        self.made: dict[str, Plan] = {}

    def plan(self, which: str, *, fresh: bool = False) -> Plan:
        if which not in self.made:
            assert not fresh
            if which.startswith(extras.PREFIX):
                mode = which.removeprefix(extras.PREFIX)
                self.made[which] = extras.mode_plan(mode, self.config_path, self.store.path)
            else:
                make = refresh.registry_plan if which == "registry" else refresh.own_plan
                self.made[which] = make(self.config_path, self.store.path)
        return self.made[which]


HOSTS: WeakKeyDictionary[Lab, Compiled] = WeakKeyDictionary()


def outcome(
    lab: Lab, asked: str, *patterns: str, then: str = "deny", default: str = "allow",
    **rule: object,
) -> str:  # fmt: skip
    """Return the decision about a request by NVIDIA_VISIBLE_DEVICES, under one rule."""
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={asked}")
    devices = {"devices": list(patterns)} if patterns else {}
    return decided(lab, {**devices, **rule, "then": then}, default=default)


def decided(lab: Lab, *rules: dict[str, object], default: str = "allow", **values: object) -> str:
    """Return the decision about the lab's container, under rules and configured values."""
    made = decision(lab, *rules, default=default, **values)
    if isinstance(made.error, NotPermittedError):
        return "deny"
    if made.error is not None:
        return made.error.code
    return "nothing" if made.request is None else "allow"


def requested(lab: Lab, *rules: dict[str, object], **values: object) -> list[str] | None:
    """Return the devices that the lab's container gets; None if it is refused, or gets none."""
    made = decision(lab, *rules, default="allow", **values)
    is_refused = made.error is not None or made.request is None
    return None if is_refused or made.request is None else made.request.ids


def refusal(lab: Lab, *rules: dict[str, object]) -> NvctError:
    """Return why the lab's container is refused."""
    error = decision(lab, *rules, default="allow").error
    assert error is not None
    return error


def decision(lab: Lab, *rules: dict[str, object], default: str, **values: object) -> Decision:
    host = HOSTS.setdefault(lab, Compiled(lab))
    policy, _ = parse({"default": default, "rules": list(rules)}, "/c")
    config = load(str(lab.config_toml)).replaced(**values, policy=policy)
    bundle = Bundle("config.json", lab.config_json.read_text(encoding="utf-8"))
    return decide(bundle, config, host)
