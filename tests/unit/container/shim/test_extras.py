# SPDX-License-Identifier: Apache-2.0
import json
import os

import pytest

from nvct.compile import mode_plans as extras
from nvct.compile import plans as compiler
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import LIB, VERSION, HostTree
from tests.support.shim_lab import Lab
from tests.unit.container.shim.test_create import counting

GPU = "NVIDIA_VISIBLE_DEVICES=0"
ALL = "NVIDIA_VISIBLE_DEVICES=all"
FEATURES = {
    "NVIDIA_GDS=enabled": "nvidia-fs0",
    "NVIDIA_GDRCOPY=enabled": "gdrdrv",
    "NVIDIA_MOFED=enabled": "infiniband/uverbs0",
    "NVIDIA_NVSWITCH=enabled": "nvidia-nvswitchctl",
    "NVIDIA_IMEX_CHANNELS=0": "nvidia-caps-imex-channels/channel0",
}
MAJORS = {
    "nvidia": 195, "nvidia-caps": 236, "nvidia-uvm": 508, "nvidia-fs": 240, "gdrdrv": 241,
    "nvidia-nvswitch": 242, "nvidia-caps-imex-channels": 243, "infiniband_verbs": 231,
}  # fmt: skip
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook"}
LEGACY = "nvidia-container-runtime.legacy"


def driver(lab: Lab, gpus: int = 2) -> HostTree:
    host = lab.driver(gpus)
    library = shared_object(os.uname().machine, soname="libnvidia-ml.so.1")
    host.write(f"driver/{LIB}/libnvidia-ml.so.{VERSION}", library)
    lines = "".join(f"{major} {name}\n" for name, major in MAJORS.items())
    host.write("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n  8 sd\n")
    return host


def board(lab: Lab) -> HostTree:
    """A driver, and all that can be asked for besides GPUs."""
    host = driver(lab)
    for name in FEATURES.values():
        host.write(f"dev/{name}", mode=0o666)
    return host


def mig_board(lab: Lab) -> None:
    """GPU 1 is in MIG mode."""
    host = driver(lab)
    host.instance(1, 1, 0, (12, 13))
    for minor, mode in ((1, 0o400), (2, 0o444)):
        host.write(f"dev/nvidia-caps/nvidia-cap{minor}", mode=mode)


def asks_with_privilege(lab: Lab, *env: str) -> None:
    lab.asks(*env)
    document = lab.document()
    document["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    lab.config_json.write_text(json.dumps(document), encoding="utf-8")


def nodes(lab: Lab) -> list[str]:
    return [node["path"].removeprefix("/dev/") for node in lab.document()["linux"]["devices"]]


def created(lab: Lab, program: str = "nvidia-container-runtime") -> None:
    result = lab.create(program=program)
    assert (result.status, result.stderr) == (0, "")


def refused(lab: Lab, program: str = "nvidia-container-runtime") -> str:
    before = lab.config_json.read_bytes()
    result = lab.create(program=program)
    assert result.status == 1
    assert lab.config_json.read_bytes() == before
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("variable", sorted(FEATURES))
@pytest.mark.parametrize("program", ["nvidia-container-runtime", LEGACY])
def test_a_requested_feature_is_injected(variable: str, program: str, lab: Lab) -> None:
    board(lab)
    lab.asks(GPU, variable)

    created(lab, program)

    existing = set(nodes(lab))
    assert "nvidia0" in existing
    assert existing & set(FEATURES.values()) == {FEATURES[variable]}
    rules = [rule for rule in lab.document()["linux"]["resources"]["devices"] if rule["allow"]]
    assert len(rules) >= len(existing)
    visible = [e for e in lab.container_env() if e.startswith("NVIDIA_VISIBLE_DEVICES=")]
    assert visible == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_the_plan_of_a_feature_is_compiled_once(lab: Lab) -> None:
    board(lab)
    calls = counting(lab)
    for _ in range(3):
        lab.asks(GPU, "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0")
        created(lab)

    assert sorted(calls.read_text().split()) == ["config", "mode-gds", "mode-imex", "own"]
    lab.host.write("dev/nvidia-fs1", mode=0o666)
    lab.asks(GPU, "NVIDIA_GDS=enabled")
    created(lab)
    assert "nvidia-fs1" in nodes(lab)


@pytest.mark.parametrize("variable", sorted(FEATURES))
def test_a_host_that_lacks_a_feature_says_so(variable: str, lab: Lab) -> None:
    driver(lab)
    lab.asks(GPU, variable)

    result = refused(lab)

    assert f"nvidia-container-runtime: {variable.partition('=')[0]}" in result
    assert "[host]" in result


@pytest.mark.parametrize("existing", [True, False], ids=["some nodes", "no nodes"])
def test_in_mode_legacy_a_channel_needs_no_node_on_the_host(lab: Lab, *, existing: bool) -> None:
    (board if existing else driver)(lab)
    lab.asks(GPU, "NVIDIA_IMEX_CHANNELS=9,9,1048575")
    before = sorted(map(str, (lab.home / "dev").rglob("*")))

    created(lab, LEGACY)

    folder = "nvidia-caps-imex-channels"
    channels = [node for node in lab.document()["linux"]["devices"] if folder in node["path"]]
    assert [(node["path"], node["type"], node["major"], node["minor"]) for node in channels] == [
        (f"/dev/{folder}/channel{number}", "c", 243, number) for number in (9, 1048575)
    ]
    rules = lab.document()["linux"]["resources"]["devices"]
    assert {"allow": True, "type": "c", "major": 243, "minor": 9, "access": "rwm"} in rules
    assert sorted(map(str, (lab.home / "dev").rglob("*"))) == before


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [("features", "disable-imex-channel-creation", True),
     ("nvidia-container-cli", "load-kmods", False)],
)  # fmt: skip
def test_config_toml_can_require_a_node_for_each_channel(
    table: str, key: str, *, value: bool, lab: Lab
) -> None:
    board(lab)
    lab.keys.setdefault(table, {})[key] = value
    lab.configure()
    lab.asks(GPU, "NVIDIA_IMEX_CHANNELS=9")

    assert "asks for channel 9, but this host has 0" in lab.create(program=LEGACY).stderr


@pytest.mark.parametrize(("capability", "number"), [("CONFIG", 1), ("MONITOR", 2)])
@pytest.mark.parametrize("program", ["nvidia-container-runtime", LEGACY])
def test_a_privileged_container_gets_a_mig_capability(
    capability: str, number: int, program: str, lab: Lab
) -> None:
    mig_board(lab)
    asks_with_privilege(lab, ALL, f"NVIDIA_MIG_{capability}_DEVICES=all")

    created(lab, program)

    existing = set(nodes(lab))
    assert {"nvidia0", "nvidia1"} <= existing
    caps = {name for name in existing if name.startswith("nvidia-caps/")}
    assert f"nvidia-caps/nvidia-cap{number}" in caps
    assert f"nvidia-caps/nvidia-cap{3 - number}" not in caps


def test_with_a_mig_capability_a_gpu_in_mig_mode_can_be_requested(lab: Lab) -> None:
    mig_board(lab)
    asks_with_privilege(lab, "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_MIG_CONFIG_DEVICES=all")

    created(lab)

    assert "nvidia1" in nodes(lab)
    assert "nvidia0" not in nodes(lab)
    assert "nvidiactl" in nodes(lab)


def test_with_only_gpus_in_mig_mode_a_mig_capability_injects_them(lab: Lab) -> None:
    mig_board(lab)
    plan = extras.mode_plan("mig", str(lab.config_toml), str(lab.run_dir))
    plan["host"]["others"] = ""  # as if NVML showed no MIG device and no other GPU
    lab.keep("mode-mig.plan", plan)
    asks_with_privilege(lab, ALL, "NVIDIA_MIG_CONFIG_DEVICES=all")

    created(lab)

    assert {"nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap1"} <= set(nodes(lab))
    assert "nvidia0" not in nodes(lab)


@pytest.mark.parametrize("word", ["1:0", "MIG-00000001-0001-0000-cccc-000000000000"])
def test_a_mig_capability_with_a_mig_device_is_refused(word: str, lab: Lab) -> None:
    mig_board(lab)
    asks_with_privilege(lab, f"NVIDIA_VISIBLE_DEVICES={word}", "NVIDIA_MIG_MONITOR_DEVICES=all")

    assert f"is about whole GPUs, but {word} is a MIG device" in refused(lab)


def test_a_mig_capability_without_a_node_has_a_hint(lab: Lab) -> None:
    mig_board(lab)
    (lab.home / "dev/nvidia-caps/nvidia-cap2").unlink()
    asks_with_privilege(lab, ALL, "NVIDIA_MIG_MONITOR_DEVICES=all")

    result = refused(lab)

    assert "NVIDIA_MIG_MONITOR_DEVICES: the host has no device node" in result
    assert "nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/monitor" in result


def knows(lab: Lab, **gpus: dict[str, str]) -> None:
    """Keep what NVML would have told."""
    plan = {**compiler.empty(str(lab.config_toml)), "gpus": gpus}
    lab.keep("properties.plan", plan)


TESLA = {"brand": "Tesla", "arch": "7.5"}
TITAN = {"brand": "Titan", "arch": "7.0"}
OLD = "NVIDIA_REQUIRE_CUDA=cuda>=99 "


@pytest.mark.parametrize(
    ("word", "expression", "met"),
    [
        ("0", "brand=titan,driver>=580", False),
        ("0", "brand=titan,driver>=580 brand=tesla,driver>=470", True),
        ("0,1", "brand=titan,driver>=580", False),
        ("all", "arch>=7.0", True),
        ("none", "brand=quadro", True),
    ],
)
def test_brand_and_architecture_are_compared_with_each_gpu(
    word: str, expression: str, met: bool, lab: Lab
) -> None:
    driver(lab)
    knows(lab, **{"0": TESLA, "1": TITAN})
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={word}", OLD + expression)

    if met:
        created(lab)
    else:
        assert "does not meet NVIDIA_REQUIRE_CUDA" in refused(lab)


@pytest.mark.parametrize(
    "expression", ["cuda>=12 brand=titan,driver>=470,driver<471", "driver>=580", "cuda<=99"]
)
def test_nvml_is_not_called_if_the_result_does_not_depend_on_it(expression: str, lab: Lab) -> None:
    driver(lab)
    calls = counting(lab)
    lab.asks(GPU, f"NVIDIA_REQUIRE_CUDA={expression}")

    created(lab)

    assert "properties" not in calls.read_text()


def test_a_requirement_on_an_unreported_property_holds_with_a_note(lab: Lab) -> None:
    driver(lab)
    lab.configure(debug=str(lab.home / "log"))
    lab.asks(GPU, OLD + "brand=tesla")

    created(lab)

    assert "requirements on brand and arch count as met" in (lab.home / "log").read_text()


@pytest.mark.parametrize("mode", ["auto", "jit-cdi", "cdi", "csv", "legacy"])
def test_without_a_request_an_nvidia_hook_stays_in_legacy_mode_only(mode: str, lab: Lab) -> None:
    lab.configure(mode=mode)
    lab.asks(hooks={"prestart": [HOOK]})

    created(lab)

    assert lab.document()["hooks"]["prestart"] == ([HOOK] if mode == "legacy" else [])


def test_an_image_can_request_all_files_of_a_board(lab: Lab) -> None:
    driver(lab)
    calls = counting(lab)
    lab.asks(GPU, "NVIDIA_REQUIRE_JETPACK=csv-mounts=all")

    created(lab)

    assert "own-csv-all" in calls.read_text().split()
