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
from typing import Any, NamedTuple

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


class Broken(NamedTuple):
    """A host, and what its container asks for.

    Attributes:
        asks: variables, or names of CDI devices.
        gpus: of the host's driver; without a number there is no driver.
        spec: a specification; without one there is none.
        config: the text of config.toml, or keys of nvidia-container-runtime.
    """

    asks: str = VISIBLE + "all"
    gpus: int | None = None
    spec: dict[str, Any] | None = None
    config: str | dict[str, Any] = ""

    def make(self, lab: Lab) -> None:
        if self.gpus is not None:
            lab.driver(gpus=self.gpus)
        if self.spec is not None:
            lab.spec(**json.loads(json.dumps(self.spec).replace("LAB", str(lab.home))))
        if isinstance(self.config, dict):
            lab.configure(**self.config)
        else:
            lab.configure(self.config)
        asks_env = self.asks.startswith("NVIDIA_")
        lab.asks(
            *self.asks.split("|") if asks_env else (),
            annotations=None if asks_env else {"cdi.k8s.io/x": self.asks},
        )


def mount(path: str) -> dict[str, Any]:
    mounts = [{"hostPath": path, "containerPath": path, "options": ["ro", "bind"]}]
    return {"common": {"mounts": mounts}}


def hook(path: str, **more: Any) -> dict[str, Any]:
    return {"common": {"hooks": [{"hookName": "createContainer", "path": path, **more}]}}


GPU = "nvidia.com/gpu=0"
PARENT = {name: {"env": [f"GPU={name}"]} for name in ("0", "1:0", "1:1", "all")}
HOSTS = {
    "config-toml-is-no-toml": Broken(config="mode = cdi\n"),
    "config-toml-has-a-value-of-another-type": Broken(config={"runtimes": "runc"}),
    "config-toml-names-an-unknown-mode": Broken(config={"mode": "cdl"}),
    "a-rule-of-the-policy-has-an-unknown-key": Broken(
        config='[nvct.policy]\nrules = [{then = "deny", max-gpus = 1}]\n'
    ),
    "a-rule-of-the-policy-denies-it": Broken(
        config='[[nvct.policy.rules]]\nname = "by UUID only"\nby = ["image-env"]\nthen = "deny"\n'
        'reason = "ask the scheduler for a GPU"\n'
    ),
    "unknown-device": Broken("nvidia.com/gpu=7", spec={}),
    "unknown-kind": Broken("acme.com/nic=0", spec={}),
    "annotation-with-a-malformed-name": Broken("nvidia.com/gpu"),
    "a-file-of-the-spec-is-gone": Broken(GPU, spec=mount("LAB/driver/libnvidia-ml.so.550.54.14")),
    "the-specs-hook-has-no-env": Broken(GPU, spec=hook("LAB/bin/nvidia-cdi-hook")),
    "the-specs-hook-is-gone": Broken(GPU, spec=hook("/usr/bin/nvidia-cdi-hook-gone", env=["A=b"])),
    "a-device-node-of-the-spec-is-gone": Broken(
        GPU, spec={"devices": {"0": {"deviceNodes": [{"path": "LAB/dev/nvidia0"}]}}}
    ),
    "a-device-node-has-other-numbers": Broken(
        GPU,
        spec={
            "devices": {"0": {"deviceNodes": [{"path": "/dev/null", "major": 195, "minor": 0}]}}
        },
    ),
    "typo-in-a-word": Broken(VISIBLE + "gpu0", gpus=2),
    "typo-a-range": Broken(VISIBLE + "0-3", gpus=2),
    "typo-with-control-characters": Broken(VISIBLE + "0,\x1b[2J\n\u202eevil", gpus=2),
    "typo-of-four-kilobytes": Broken(VISIBLE + "G" * 4096, gpus=2),
    "unknown-index": Broken(VISIBLE + "0,8", gpus=2),
    "unknown-uuid": Broken(VISIBLE + "GPU-deadbeef-aaaa-bbbb-cccc-000000000000", gpus=2),
    "parent-of-mig-devices": Broken(
        VISIBLE + "1", spec={"devices": PARENT}, config={"mode": "cdi"}
    ),
    "no-driver-root": Broken(),
    "host-without-gpudirect-storage": Broken(VISIBLE + "all|NVIDIA_GDS=enabled", gpus=2),
    "mixed-names": Broken(VISIBLE + "0,nvidia.com/gpu=1", gpus=2),
}


def config_toml_is_a_directory(lab: Lab) -> None:
    lab.config_toml.unlink()
    lab.config_toml.mkdir()
    lab.asks(VISIBLE + "all")


def config_toml_has_an_empty_annotation_prefix(lab: Lab) -> None:
    lab.keys["nvidia-container-runtime.modes.cdi"]["annotation-prefixes"] = [""]
    lab.configure()
    lab.asks(VISIBLE + "all")


def config_json_is_no_json(lab: Lab) -> None:
    lab.config_json.write_text('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]', "utf-8")


def config_json_is_missing(lab: Lab) -> None:
    del lab


def config_json_has_an_env_that_is_no_array(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations={"cdi.k8s.io/x": GPU}, process={"env": {"A": "b"}})


def no_runtime_is_installed(lab: Lab) -> None:
    lab.configure(runtimes=["nope", f"{lab.home}/bin/gone"])
    lab.asks()


def the_runtime_is_no_program(lab: Lab) -> None:
    (lab.home / "bin/runc").write_bytes(b"\x7fELF no program")
    lab.asks()


def unknown_kind_beside_a_broken_spec(lab: Lab) -> None:
    (lab.home / "cdi/acme.yaml").write_text("cdiVersion: 0.5.0\nkind: acme\n", encoding="utf-8")
    lab.asks(annotations={"cdi.k8s.io/x": "acme.com/nic=0"})


def two_specs_define_the_device(lab: Lab) -> None:
    lab.spec("a.json")
    lab.spec("b.json")
    lab.asks(annotations={"cdi.k8s.io/x": GPU})


def the_spec_is_for_another_driver(lab: Lab) -> None:
    lab.driver()
    old = lab.host.write("driver/usr/lib/libcuda.so.550.54.14")
    lab.spec(**mount(str(old)))
    lab.asks(annotations={"cdi.k8s.io/x": GPU})


def no_driver(lab: Lab) -> None:
    (lab.home / "driver").mkdir()
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


def cold_interpreter_is_gone(lab: Lab) -> None:
    lab.driver()
    lab.cold = "/opt/nvct/bin/python"
    lab.asks(VISIBLE + "all")


def cold_interpreter_has_no_nvct(lab: Lab) -> None:
    lab.driver()
    lab.cold = "/bin/false"
    lab.asks(VISIBLE + "all")


CASES: dict[str, Callable[[Lab], None]] = {
    **{name: host.make for name, host in HOSTS.items()},
    **{
        name.replace("_", "-"): each
        for name, each in list(vars().items())
        if inspect.isfunction(each) and [*inspect.signature(each).parameters] == ["lab"]
    },
}


def logged(lab: Lab, form: str) -> tuple[Said, str]:
    """Run the create with a log of this form; return also what was added to the log."""
    log = lab.home / f"log.{form}"
    log.write_text("before\n", encoding="utf-8")
    said = lab.create("--log", str(log), "--log-format", form)
    text = log.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    return said, text.removeprefix("before\n")


@pytest.mark.parametrize("case", CASES)
def test_a_create_that_fails_says_why_in_one_helpful_line(
    case: str, lab: Lab, golden: Callable[[str, str], None]
) -> None:
    CASES[case](lab)
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
    golden(f"errors/{case}.txt", shown)


def test_every_golden_file_has_its_case() -> None:
    folder = os.path.dirname(__file__)
    files = {name for name in os.listdir(folder) if name.endswith(".txt")}

    assert files == {f"{case}.txt" for case in CASES}
