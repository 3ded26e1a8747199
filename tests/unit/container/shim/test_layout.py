# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.config import load
from nvct.doctor import parts
from nvct.doctor.node import Node
from nvct.linux import ldcache
from tests.support.shim_lab import Lab
from tests.unit.container.shim.images import CACHE, DEBIAN, LOADER, MACHINE

ALL = "NVIDIA_VISIBLE_DEVICES=all"
ASKS_FOR = "NVIDIA_DRIVER_LAYOUT="
pytestmark = pytest.mark.skipif(MACHINE != "x86_64", reason="the lab's driver is for x86_64")


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver()
    with_layout(lab, "auto")
    root = lab.bundle / "rootfs"
    for path, data in (
        (LOADER, b"\x7fELF"), (f"{DEBIAN}/libc.so.6", b"\x7fELF"),
        (CACHE, ldcache.merge(None, [("libc.so.6", f"{DEBIAN}/libc.so.6")], machine=MACHINE)),
    ):  # fmt: skip
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / path[1:]).write_bytes(data)
    return lab


def with_layout(lab: Lab, layout: str) -> None:
    lab.keys["nvct"]["layout"] = layout
    lab.configure(debug=str(lab.home / "shim.log"))


def without_view(lab: Lab) -> None:
    lab.keys["nvidia-container-runtime.modes.jit-cdi"] = {
        "nvcdi-disable-hooks": ["update-ldcache"]
    }
    lab.configure()


def created(lab: Lab, *env: str) -> tuple[str, str]:
    lab.asks(ALL, *env)
    result = lab.create()
    assert (result.status, result.stderr) == (0, "")
    destinations = [mount["destination"] for mount in lab.document()["mounts"]]
    last = (lab.home / "shim.log").read_text().splitlines()[-1]
    return ("farm" if "/usr/local/nvidia" in destinations else "classic"), last


def farm_part(lab: Lab) -> str:
    return parts.farm(Node(settings=load.load(str(lab.config_toml)), env=lab.env)).lines[0]


def test_a_container_can_choose_the_classic_layout(lab: Lab) -> None:
    assert created(lab)[0] == "farm"

    layout, log = created(lab, ASKS_FOR + "classic")

    assert layout == "classic"
    assert "layout classic: NVIDIA_DRIVER_LAYOUT asks for it" in log


@pytest.mark.parametrize("value", ["farm", "auto", ""])
def test_a_container_can_name_the_default_layout(lab: Lab, value: str) -> None:
    assert created(lab, ASKS_FOR + value)[0] == "farm"


def test_a_layout_that_config_toml_excludes_cannot_be_chosen(lab: Lab) -> None:
    with_layout(lab, "classic")

    layout, log = created(lab, ASKS_FOR + "farm")

    assert layout == "classic"
    assert "layout classic: config.toml allows no other" in log


@pytest.mark.parametrize("value", ["Classic", "farm,classic", "none", "\u202e"])
def test_an_unknown_layout_is_refused(lab: Lab, value: str) -> None:
    lab.asks(ALL, ASKS_FOR + value)

    result = lab.create()

    assert result.status != 0
    assert "NVIDIA_DRIVER_LAYOUT cannot be" in result.stderr
    assert "use one of: auto, classic, farm" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_layout_of_a_container_without_a_request_is_not_checked(lab: Lab) -> None:
    lab.asks(ASKS_FOR + "nonsense")

    assert lab.create().status == 0


def test_status_says_which_layout_auto_chose_and_why(lab: Lab) -> None:
    assert farm_part(lab).startswith("layout auto: the first container shows")
    created(lab)
    assert farm_part(lab).startswith(f"layout auto is farm here: the view {lab.home}/farm/")
    assert farm_part(lab).endswith(" is made of links; 1 view of the driver")

    without_view(lab)
    created(lab)
    why = "config.toml disables the hook update-ldcache"
    assert farm_part(lab).startswith(f"layout auto is classic here: {why}")

    with_layout(lab, "classic")
    assert farm_part(lab).startswith("layout classic, as config.toml says")
