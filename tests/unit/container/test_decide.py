# SPDX-License-Identifier: Apache-2.0
"""What is decided about a container, before anybody delivers it."""

from __future__ import annotations

import json

import pytest

from nvct.compile import plans as compiler
from nvct.config.model import Config
from nvct.container.decide import decide
from nvct.container.edits import stored_or_fresh
from nvct.container.host import Host
from nvct.container.plan import model
from nvct.container.plan.store import Store
from nvct.errors import ConfigError, HostError, RequestError, StaleSpecError, UnknownDeviceError
from nvct.linux import ldcache
from nvct.linux.kernel import KERNEL
from nvct.oci.bundle import Bundle
from tests.unit.container.shim.images import MACHINE, Image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from nvct.container.plan.model import Plan
    from nvct.container.request.model import Request

ASKS = "NVIDIA_VISIBLE_DEVICES="


class Planned(Host):
    """A machine with the plan of one GPU, which says how often it was asked for."""

    __slots__ = ("asked", "made")

    def __init__(self, image: Image) -> None:
        super().__init__(Store(str(image.bundle / "none")), {}, "/no/cold")
        edits = model.no_edits()
        edits["work"] = image.work()
        edits["mounts"] = [
            [c, f'{{"destination":"{c}","source":"{h}"}}'] for c, h in image.files().items()
        ]
        edits["cache"] = [[MACHINE, "libcuda.so.1", path] for path in image.files()]
        self.made = compiler.empty("/c")
        self.made["specs"].append({"path": "", "facts": [], "edits": edits, "refuse": ""})
        self.made["edits"].append(model.no_edits())
        self.made["devices"]["nvidia.com/gpu=0"] = {
            "spec": 0, "edits": 0, "facts": [], "refuse": "",
        }  # fmt: skip
        self.made["hook"] = {"path": "/h", "args": ["h"], "env": ["A=B"]}
        self.asked: list[tuple[str, bool]] = []

    def plan(self, which: str, *, fresh: bool = False) -> Plan:
        self.asked.append((which, fresh))
        return self.made


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = Image(tmp_path)
    made.glibc()
    return made


def asking(image: Image, *env: str) -> Bundle:
    image.config["process"]["env"] += env
    return Bundle(str(image.bundle / "config.json"), json.dumps(image.config))


def test_who_asks_for_nothing_needs_no_plan_and_no_config_toml(image: Image) -> None:
    host = Planned(image)

    decision = decide(asking(image), Config(), host, trouble=ConfigError("no TOML"))

    assert (decision.request, decision.error, decision.edits) == (None, None, [])
    assert host.asked == []


def test_trouble_is_for_who_asks(image: Image) -> None:
    trouble = ConfigError("no TOML")

    decision = decide(asking(image, ASKS + "0"), Config(), Planned(image), trouble=trouble)

    assert decision.error is trouble
    assert decision.request is not None


@pytest.mark.skipif(MACHINE not in ldcache.FLAGS, reason="no ld.so.cache is known")
def test_deciding_leaves_root_and_document_alone(image: Image) -> None:
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
    assert any("hook" in one for one in decision.edits)


def test_a_request_is_accepted_before_its_plans_are_read(image: Image) -> None:
    host = Planned(image)

    def refuse(request: Request) -> None:
        raise RequestError(f"{request.source} is not for me")

    decision = decide(asking(image, ASKS + "0"), Config(), host, accept=refuse)

    assert isinstance(decision.error, RequestError)
    assert host.asked == []
    with pytest.raises(RequestError, match="is not for me"):
        decision.into(asking(image), Config(), None)


def test_a_file_that_is_gone_has_the_plan_made_once_more(image: Image) -> None:
    host = Planned(image)
    source = next(iter(image.files().values()))
    (image.driver.root / source.removeprefix(str(image.driver.root)).lstrip("/")).unlink()

    decision = decide(asking(image, ASKS + "0"), Config(), host)

    assert isinstance(decision.error, HostError)
    assert decision.error.message == f"{source} went away meanwhile"
    assert host.asked == [("own", False), ("own", True)]


@pytest.mark.parametrize("error", [model.StalePlanError("x"), StaleSpecError("x")])
def test_what_does_not_hold_is_made_again_once(error: HostError) -> None:
    attempts: list[bool] = []

    def make(fresh: bool) -> str:  # noqa: FBT001
        attempts.append(fresh)
        if len(attempts) == 1:
            raise error
        return "made"

    assert stored_or_fresh(make) == "made"
    assert attempts == [False, True]


def test_another_error_is_final() -> None:
    attempts: list[bool] = []

    def make(fresh: bool) -> str:  # noqa: FBT001
        attempts.append(fresh)
        raise UnknownDeviceError("x")

    with pytest.raises(UnknownDeviceError):
        stored_or_fresh(make)
    assert attempts == [False]
