# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvct.compile import plans as compiler
from nvct.config.model import Config
from nvct.container.decide import decide
from nvct.container.edits import stored_or_fresh
from nvct.container.host import Host
from nvct.container.plan import model
from nvct.container.plan.store import Store
from nvct.container.request.model import Request, Want
from nvct.errors import ConfigError, HostError, RequestError, StaleSpecError
from nvct.linux import ldcache
from nvct.linux.kernel import KERNEL
from nvct.oci.bundle import Bundle
from tests.unit.container.shim.images import MACHINE, Image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Plan

ASKS = "NVIDIA_VISIBLE_DEVICES="
GPU = "GPU-11111111-2222-3333-4444-555555555555"


class Planned(Host):
    """A machine with the plan of one GPU; it records each call for the plan."""

    __slots__ = ("compiled", "plan_calls")

    def __init__(self, image: Image) -> None:
        super().__init__(Store(str(image.bundle / "none")), {}, "/no/cold")
        edits = model.no_edits()
        edits["work"] = image.work()
        edits["mounts"] = [
            [c, f'{{"destination":"{c}","source":"{h}"}}'] for c, h in image.files().items()
        ]
        edits["cache"] = [[MACHINE, "libcuda.so.1", path] for path in image.files()]
        self.compiled = compiler.empty("/c")
        self.compiled["specs"].append({"path": "", "facts": [], "edits": edits, "refuse": ""})
        self.compiled["edits"].append(model.no_edits())
        self.compiled["devices"]["nvidia.com/gpu=0"] = {
            "spec": 0, "edits": 0, "facts": [], "refuse": "",
        }  # fmt: skip
        self.compiled["hook"] = {"path": "/h", "args": ["h"], "env": ["A=B"]}
        self.plan_calls: list[tuple[str, bool]] = []

    def plan(self, name: str, *, fresh: bool = False) -> Plan:
        self.plan_calls.append((name, fresh))
        return self.compiled


@pytest.fixture
def image(tmp_path: Path) -> Image:
    new_image = Image(tmp_path)
    new_image.glibc()
    return new_image


def asking(image: Image, *env: str) -> Bundle:
    image.config["process"]["env"] += env
    return Bundle(str(image.bundle / "config.json"), json.dumps(image.config))


def test_a_container_without_a_request_needs_no_plan_and_no_config_toml(image: Image) -> None:
    host = Planned(image)

    decision = decide(asking(image), Config(), host, trouble=ConfigError("no TOML"))

    assert (decision.request, decision.error, decision.edits) == (None, None, [])
    assert host.plan_calls == []


@pytest.mark.skipif(MACHINE not in ldcache.FLAGS, reason="no ld.so.cache is known")
def test_deciding_changes_neither_root_nor_document(image: Image) -> None:
    bundle = asking(image, ASKS + "0")
    before = image.tree()

    decision = decide(bundle, Config(), Planned(image), folder=str(image.bundle))

    assert decision.layout is not None
    assert image.tree() == before
    assert json.loads(bundle.document.render()) == image.config
    decision.into(bundle, Config(), None)
    assert image.tree() == before
    assert "hooks" not in json.loads(bundle.document.render())
    assert decision.notes == ["without a hook"]
    decision.layout.write(KERNEL)
    assert image.tree() != before


def test_a_live_container_has_no_layout(image: Image) -> None:
    decision = decide(asking(image, ASKS + "0"), Config(), Planned(image))

    assert decision.layout is None
    assert any("hook" in edit for edit in decision.edits)


def test_a_request_is_accepted_before_its_plans_are_read(image: Image) -> None:
    host = Planned(image)

    def refuse(request: Request) -> None:
        raise RequestError(f"{request.source} is not for me")

    decision = decide(asking(image, ASKS + "0"), Config(), host, accept=refuse)

    assert isinstance(decision.error, RequestError)
    assert host.plan_calls == []
    with pytest.raises(RequestError, match="is not for me"):
        decision.into(asking(image), Config(), None)


def test_a_missing_mount_source_compiles_the_plan_once_more(image: Image) -> None:
    host = Planned(image)
    source = next(iter(image.files().values()))
    (image.driver.root / source.removeprefix(str(image.driver.root)).lstrip("/")).unlink()

    decision = decide(asking(image, ASKS + "0"), Config(), host)

    assert isinstance(decision.error, HostError)
    assert decision.error.message == f"{source} has just disappeared"
    assert host.plan_calls == [("own", False), ("own", True)]


@pytest.mark.parametrize("error", [model.StalePlanError("x"), StaleSpecError("x")])
def test_a_stale_plan_is_compiled_again_once(error: HostError) -> None:
    attempts: list[bool] = []

    def make(fresh: bool) -> str:
        attempts.append(fresh)
        if len(attempts) == 1:
            raise error
        return "made"

    assert stored_or_fresh(make) == "made"
    assert attempts == [False, True]


class Shared(Planned):
    """A machine whose only GPU is free; it records the leases."""

    __slots__ = ("leased",)

    def __init__(self, image: Image) -> None:
        super().__init__(image)
        self.leased: list[str] = []
        self.compiled["devices"][f"nvidia.com/gpu={GPU}"] = self.compiled["devices"][
            "nvidia.com/gpu=0"
        ]

    def choose(self, want: Want, source: str) -> tuple[list[str], str]:
        self.leased.append(f"{source}={want.word}")
        return [GPU], "/bin/nvidia-cdi-hook"

    def give_back(self) -> None:
        self.leased.clear()


def test_a_free_gpu_is_chosen_and_a_hook_keeps_its_lease(image: Image) -> None:
    host = Shared(image)
    bundle = asking(image, f"{ASKS}free:1")

    decision = decide(bundle, Config(), host)
    decision.into(bundle, Config(), None)

    assert host.leased == ["NVIDIA_VISIBLE_DEVICES=free:1"]
    assert decision.request is not None
    assert decision.request.ids == [GPU]
    assert f"free:1 is {GPU}" in decision.notes
    (hook,) = json.loads(bundle.document.render())["hooks"]["createRuntime"]
    assert hook["path"] == "/bin/nvidia-cdi-hook"
    assert hook["args"][:2] == ["nvidia-cdi-hook", "keep-leases"]
    assert hook["args"][-1] == "--count=1"


@pytest.mark.parametrize(
    "pod",
    [
        {"annotations": {"io.kubernetes.cri.container-type": "container"}},
        {"linux": {"cgroupsPath": "/kubepods/besteffort/pod1/2"}},
    ],
)
def test_in_a_pod_a_free_gpu_is_refused(image: Image, pod: dict[str, dict[str, str]]) -> None:
    for key, members in pod.items():
        image.config.setdefault(key, {}).update(members)
    host = Shared(image)

    decision = decide(asking(image, f"{ASKS}free:1"), Config(), host)

    assert isinstance(decision.error, RequestError)
    assert "in a pod, where the kubelet chooses" in decision.error.message
    assert host.leased == []


def test_a_lease_that_a_rule_ignores_is_given_back(image: Image) -> None:
    host = Shared(image)
    rule = '{"name": "r", "asks-for": ["free"], "then": "ignore"}'

    decision = decide(asking(image, f"{ASKS}free:1"), Config(policy=(rule,)), host)

    assert (decision.request, decision.error, decision.leases) == (None, None, None)
    assert host.leased == []
