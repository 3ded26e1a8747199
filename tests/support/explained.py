# SPDX-License-Identifier: Apache-2.0
"""Hosts and containers for tests of `nvct explain`, and the command itself."""

import json
import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from nvct.cli.main import program
from tests.support.shim_lab import Lab

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
POD = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-namespace": "web",
}
POLICY = """
[nvct.policy]
[[nvct.policy.rules]]
name = "plugin only"
kubernetes = true
by = ["image-env"]
then = "ignore"
reason = "ask for nvidia.com/gpu"
[[nvct.policy.rules]]
name = "one each"
more-gpus-than = 1
then = "deny"
reason = "a container gets one GPU"
"""


def run(lab: Lab, *args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(
        program("nvct"), ["explain", *map(str, args)], prog_name="nvct", env=lab.env, input=stdin
    )


def explained(lab: Lab, *args: str | Path) -> dict[str, Any]:
    result = run(lab, *(args or ("--bundle", lab.bundle)), "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if found["error"] else 0)
    return found


def with_policy(lab: Lab, text: str = POLICY) -> None:
    lab.configure(lab.config_toml.read_text(encoding="utf-8") + text)
    lab.age(lab.config_toml)


def gpu(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0")


def all_gpus_of_a_spec(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0,nvidia.com/gpu=1"})


def nothing(lab: Lab) -> None:
    lab.asks("PATH=/bin")


def hook_of_the_incumbent(lab: Lab) -> None:
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}
    lab.asks("PATH=/bin", hooks=hooks)


def no_driver(lab: Lab) -> None:
    lab.asks(VISIBLE + "0")


def typo(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "fooo")


def unknown(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "7")


def requirement(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0", "NVIDIA_REQUIRE_CUDA=cuda>=99.0")


def capabilities(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "0", "NVIDIA_DRIVER_CAPABILITIES=utility")


def bad_configuration(lab: Lab) -> None:
    lab.configure("mode = [")
    lab.asks(VISIBLE + "0")


def bad_configuration_that_nobody_needs(lab: Lab) -> None:
    lab.configure("mode = [")
    lab.env["PATH"] = f"{lab.home}/bin:/usr/bin:/bin"
    lab.asks("PATH=/bin")


def bad_rule(lab: Lab) -> None:
    with_policy(lab, '[nvct.policy]\nrules = [{then = "deny", user = [0]}]\n')
    lab.asks(VISIBLE + "0")


def allowed(lab: Lab) -> None:
    lab.driver(gpus=1)
    with_policy(lab)
    lab.asks(VISIBLE + "all")


def denied(lab: Lab) -> None:
    lab.driver(gpus=2)
    with_policy(lab)
    lab.asks(VISIBLE + "all")


def ignored(lab: Lab) -> None:
    lab.driver()
    with_policy(lab)
    lab.asks(VISIBLE + "all", annotations=POD)


def ignored_on_a_host_without_a_driver(lab: Lab) -> None:
    with_policy(lab)
    lab.asks(VISIBLE + "all", annotations=POD)


def from_the_plugin(lab: Lab) -> None:
    lab.driver()
    with_policy(lab)
    lab.asks(VISIBLE + lab.host.uuid(0), annotations=POD)


def farm_of(lab: Lab) -> None:
    lab.driver()
    lab.keys["nvct"].update({"layout": "farm", "farm-dir": str(lab.home / "farm")})
    lab.configure()
    lab.age(lab.config_toml)
    glibc_root(lab)
    lab.asks(VISIBLE + "0")


def glibc_root(lab: Lab) -> list[Path]:
    """Rebuild the container's root; return all its paths."""
    shutil.rmtree(lab.bundle / "rootfs")
    libc = lab.bundle / "rootfs/usr/lib/x86_64-linux-gnu/libc.so.6"
    libc.parent.mkdir(parents=True)
    libc.write_bytes(b"")
    return sorted((lab.bundle / "rootfs").rglob("*"))
