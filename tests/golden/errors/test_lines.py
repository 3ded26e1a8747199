# SPDX-License-Identifier: Apache-2.0
"""What a user reads when a create fails: stderr, exit status, and the low-level runtime's log.

Each case breaks a host in one way. The line has to name the value and the path concerned and say
what to do; `make golden KIND=errors` rewrites them, and a person looks at the diff.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Generator
from typing import Any

import pytest

from nvct.errors import LINE_LIMIT
from tests.support import memory
from tests.support.host_tree import LIB, VERSION
from tests.support.launcher import script
from tests.support.shim_lab import Lab, Said

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
CUT = re.compile(rf"{memory.ROOT}/n\S*?\.\.\.")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    yield made
    made.remove()


def cdi(name: str) -> dict[str, str]:
    return {"cdi.k8s.io/x": name}


def mount(path: str) -> dict[str, Any]:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "bind"]}


def hook(path: str, **more: Any) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": path, **more}


def config_toml_is_no_toml(lab: Lab) -> None:
    lab.configure("mode = cdi\n")
    lab.asks(VISIBLE + "all")


def config_toml_has_a_value_of_another_type(lab: Lab) -> None:
    lab.configure(runtimes="runc")
    lab.asks(VISIBLE + "all")


def config_toml_is_a_directory(lab: Lab) -> None:
    lab.config_toml.unlink()
    lab.config_toml.mkdir()
    lab.asks(VISIBLE + "all")


def config_toml_names_an_unknown_mode(lab: Lab) -> None:
    lab.configure(mode="cdl")
    lab.asks(VISIBLE + "all")


def config_toml_has_an_empty_annotation_prefix(lab: Lab) -> None:
    lab.keys["nvidia-container-runtime.modes.cdi"]["annotation-prefixes"] = [""]
    lab.configure()
    lab.asks(VISIBLE + "all")


def a_rule_of_the_policy_has_an_unknown_key(lab: Lab) -> None:
    lab.configure('[nvct.policy]\nrules = [{then = "deny", max-gpus = 1}]\n')
    lab.asks(VISIBLE + "all")


def a_rule_of_the_policy_denies_it(lab: Lab) -> None:
    lab.configure(
        '[[nvct.policy.rules]]\nname = "by UUID only"\nby = ["image-env"]\nthen = "deny"\n'
        'reason = "ask the scheduler for a GPU"\n'
    )
    lab.asks(VISIBLE + "all")


def config_json_is_no_json(lab: Lab) -> None:
    lab.config_json.write_text('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]', "utf-8")


def config_json_is_missing(lab: Lab) -> None:
    del lab


def config_json_has_an_env_that_is_no_array(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations=cdi("nvidia.com/gpu=0"), process={"env": {"A": "b"}})


def no_runtime_is_installed(lab: Lab) -> None:
    lab.configure(runtimes=["nope", f"{lab.home}/bin/gone"])
    lab.asks()


def the_runtime_is_no_program(lab: Lab) -> None:
    (lab.home / "bin/runc").write_bytes(b"\x7fELF no program")
    lab.asks()


def unknown_device(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations=cdi("nvidia.com/gpu=7"))


def unknown_kind(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations=cdi("acme.com/nic=0"))


def unknown_kind_beside_a_broken_spec(lab: Lab) -> None:
    (lab.home / "cdi/acme.yaml").write_text("cdiVersion: 0.5.0\nkind: acme\n", encoding="utf-8")
    lab.asks(annotations=cdi("acme.com/nic=0"))


def annotation_with_a_malformed_name(lab: Lab) -> None:
    lab.asks(annotations=cdi("nvidia.com/gpu"))


def two_specs_define_the_device(lab: Lab) -> None:
    lab.spec("a.json")
    lab.spec("b.json")
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def a_file_of_the_spec_is_gone(lab: Lab) -> None:
    lab.spec(common={"mounts": [mount(f"{lab.home}/driver/libnvidia-ml.so.550.54.14")]})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def the_spec_is_for_another_driver(lab: Lab) -> None:
    lab.driver()
    old = lab.host.write("driver/usr/lib/libcuda.so.550.54.14")
    lab.spec(common={"mounts": [mount(str(old))]})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def the_specs_hook_has_no_env(lab: Lab) -> None:
    lab.spec(common={"hooks": [hook(str(lab.hook))]})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def the_specs_hook_is_gone(lab: Lab) -> None:
    lab.spec(common={"hooks": [hook("/usr/bin/nvidia-cdi-hook-gone", env=["A=b"])]})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def a_device_node_of_the_spec_is_gone(lab: Lab) -> None:
    lab.spec(devices={"0": {"deviceNodes": [{"path": f"{lab.home}/dev/nvidia0"}]}})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def a_device_node_has_other_numbers(lab: Lab) -> None:
    node = {"path": "/dev/null", "major": 195, "minor": 0}
    lab.spec(devices={"0": {"deviceNodes": [node]}})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))


def typo_in_a_word(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "gpu0")


def typo_a_range(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0-3")


def typo_with_control_characters(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0,\x1b[2J\n\u202eevil")


def typo_of_four_kilobytes(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "G" * 4096)


def unknown_index(lab: Lab) -> None:
    lab.driver(gpus=2)
    lab.asks(VISIBLE + "0,8")


def unknown_uuid(lab: Lab) -> None:
    lab.driver(gpus=2)
    lab.asks(VISIBLE + "GPU-deadbeef-aaaa-bbbb-cccc-000000000000")


def parent_of_mig_devices(lab: Lab) -> None:
    lab.spec(devices={name: {"env": [f"GPU={name}"]} for name in ("0", "1:0", "1:1", "all")})
    lab.configure(mode="cdi")
    lab.asks(VISIBLE + "1")


def no_driver(lab: Lab) -> None:
    (lab.home / "driver").mkdir()
    lab.asks(VISIBLE + "all")


def no_driver_root(lab: Lab) -> None:
    lab.asks(VISIBLE + "all")


def driver_without_gpus(lab: Lab) -> None:
    lab.driver(gpus=0)
    (lab.home / "driver" / LIB / "libnvidia-ml.so.1").unlink()
    (lab.home / "driver" / LIB / f"libnvidia-ml.so.{VERSION}").unlink()
    lab.asks(VISIBLE + "all")


def nvml_crashes(lab: Lab) -> None:
    lab.driver(gpus=1).instance(0, 1, 0, (12, 13))
    lab.cold = str(
        script(
            lab.home / "bin/python",
            """case "$*" in *own*) kill -SEGV $$ ;; esac
exec "$REAL" "$@"
""".replace("$REAL", lab.cold),
        )
    )
    lab.asks(VISIBLE + "all")


def the_own_hook_is_not_installed(lab: Lab) -> None:
    lab.driver()
    lab.hook.unlink()
    lab.asks(VISIBLE + "all")


def driver_without_device_nodes(lab: Lab) -> None:
    lab.driver(gpus=1)
    (lab.home / "dev/nvidia0").unlink()
    lab.asks(VISIBLE + "all")


def host_without_gpudirect_storage(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "all", "NVIDIA_GDS=enabled")


def mixed_names(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0,nvidia.com/gpu=1")


def cold_interpreter_is_gone(lab: Lab) -> None:
    lab.driver()
    lab.cold = "/opt/nvct/bin/python"
    lab.asks(VISIBLE + "all")


def cold_interpreter_has_no_nvct(lab: Lab) -> None:
    lab.driver()
    lab.cold = "/bin/false"
    lab.asks(VISIBLE + "all")


CASES: list[Callable[[Lab], None]] = [
    each
    for each in list(vars().values())
    if inspect.isfunction(each) and [*inspect.signature(each).parameters] == ["lab"]
]
"""All that is above: what makes a lab a broken host."""


def logged(lab: Lab, form: str) -> tuple[Said, str]:
    """Run the create with a log of this form; return also what was added to the log."""
    log = lab.home / f"log.{form}"
    log.write_text("before\n", encoding="utf-8")
    said = lab.create("--log", str(log), "--log-format", form)
    text = log.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    return said, text.removeprefix("before\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.replace("_", "-"))
def test_a_create_that_fails_says_why_in_one_helpful_line(
    case: Callable[[Lab], None], lab: Lab, golden: Callable[[str, str], None]
) -> None:
    case(lab)
    before = lab.config_json.read_bytes() if lab.config_json.exists() else None

    said, entry = logged(lab, "json")
    again, text_entry = logged(lab, "text")

    assert again == said
    assert said.stdout == ""
    assert said.stderr.endswith("\n")
    line = said.stderr[:-1]
    assert line.isprintable()
    assert len(line) <= LINE_LIMIT
    assert json.loads(entry)["msg"] == line
    if before is not None:
        assert lab.config_json.read_bytes() == before
        assert sorted(os.listdir(lab.bundle)) == ["config.json", "rootfs"]
    shown = f"exit status {said.status}\n{said.stderr}{entry}{text_entry}"
    shown = STAMP.sub("TIME", CUT.sub("LAB...", shown.replace(str(lab.home), "LAB")))
    golden(f"errors/{case.__name__.replace('_', '-')}.txt", shown)


def test_every_golden_file_has_its_case() -> None:
    folder = os.path.dirname(__file__)
    files = {name for name in os.listdir(folder) if name.endswith(".txt")}

    assert files == {f"{case.__name__.replace('_', '-')}.txt" for case in CASES}
