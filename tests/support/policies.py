# SPDX-License-Identifier: Apache-2.0
"""Rules of a policy, and containers to apply them to."""

import json
from pathlib import Path
from typing import Any

from nvct.config.load import from_toml
from nvct.config.model import Config
from nvct.container.plan_devices import PlanDevices
from nvct.container.request.model import VISIBLE_DEVICES, Request
from nvct.container.request.origin import Origin
from nvct.container.request.resolve import resolve_request
from nvct.errors import NotPermittedError
from nvct.oci.bundle import Bundle

UUID = "GPU-8a56d3b8-0f8c-4a6e-9e5f-0123456789ab"
BUS_ID = "0000:18:00.0"
"""PCI bus id of GPU 0, the GPU with that UUID."""
MIG = "MIG-8a56d3b8-0f8c-4a6e-9e5f-0123456789ab"
ALL = f"{VISIBLE_DEVICES}=all"
CONTAINERD = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-namespace": "ml-train",
}
CRIO = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.pod.namespace": "ml-train",
}
ROOT = "0 0 4294967295\n"


def policy(text: str, default: str = "allow", **values: object) -> Config:
    """Make a configuration from rules without their header, separated by ---."""
    lines = [f'[nvct.policy]\ndefault = "{default}"']
    lines += [f"[[nvct.policy.rules]]\n{rule}" for rule in text.split("---") if rule.strip()]
    return from_toml("\n".join(lines).encode(), "/c").replaced(**values)


class Plans(PlanDevices):
    """Plans with some GPUs; the first has three names."""

    def __init__(self, number: int = 8) -> None:
        self.number = number
        self.counted: list[str] = []

    def count(self, request: Request, kind: str) -> int:
        del request
        self.counted.append(kind)
        return self.number

    def check_known(self, request: Request) -> None:
        """Know each device."""

    def injected(self, request: Request) -> dict[tuple[str, int, int], str]:
        del request
        return {}

    def aliases(self, request: Request, name: str) -> list[list[str]] | None:
        del request
        if not self.number:
            return None
        kind, _, device = name.partition("=")
        there = [[f"{kind}={index}"] for index in range(self.number)]
        there[0] += [f"{kind}={UUID}", f"{kind}={BUS_ID}"]
        return [names for names in there if device == "all" or name in names]


class Container:
    """A container's config.json."""

    def __init__(self, tmp_path: Path) -> None:
        self.uid_map = tmp_path / "uid_map"
        self.uid_map.write_text(ROOT)
        self.annotations: dict[str, str] = {}
        self.bounding: list[str] = []
        self.linux: dict[str, Any] = {}
        self.mounts: list[dict[str, object]] = []
        self.plans = Plans()
        self.origin: Origin | None = None

    def decide(self, config: Config, *env: str) -> tuple[Request | None, list[str]]:
        document = {
            "process": {"env": env, "capabilities": {"bounding": self.bounding}},
            "mounts": self.mounts,
            "annotations": self.annotations,
            "linux": self.linux,
        }
        bundle = Bundle("config.json", json.dumps(document))
        self.origin = Origin(bundle, self.plans, str(self.uid_map))
        return resolve_request(
            bundle.env, bundle.mounts, bundle.annotations, bundle.bounding, config,
            origin=self.origin,
        )  # fmt: skip

    def outcome(self, config: Config, *env: str) -> str:
        try:
            return "ignore" if self.decide(config, *env)[0] is None else "allow"
        except NotPermittedError:
            return "deny"
