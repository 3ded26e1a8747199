# SPDX-License-Identifier: Apache-2.0
"""A name of a device that is accepted anywhere is accepted everywhere: each form, each surface."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.cli.container import configure
from nvct.compile import live_host, refresh
from nvct.config.load import load
from nvct.paths import CONFIG_ENV, OWN_CONFIG_ENV, RUN_DIR_ENV
from nvct_sim import tree
from tests.support.commands import invoke
from tests.support.processes import captured

CACHE = Path(__file__).parents[2] / ".cache/native"
PARTS = re.compile(r"/nvidia(?:\d+|-cap\d+)$")
"""The nodes that tell devices apart."""
FORMS = {
    "index": "{index}",
    "UUID": "{uuid}",
    "PCI bus id": "{bus}",
    "PCI bus id without function": "{bus_device}",
    "PCI bus id as NVML writes it": "0000{bus}",
    "index of a MIG device": "{gpu}:{mig}",
    "UUID of a MIG device": "{mig_uuid}",
    "UUID of a MIG device before R470": "MIG-{mig_parent}/{gi}/{ci}",
}
CDI = ("full name", "annotation")
"""CDI device names have no slash: CDI specification 1.1, SPEC.md."""


class Machine:
    """A simulated node, one of whose GPUs is in MIG mode, and what its programs say."""

    def __init__(self, work: Path) -> None:
        self.node = tree.create("names", "h100-mig", work, nodes="plain", native_cache=CACHE)
        config = work / "config.toml"
        config.write_text(
            "accept-nvidia-visible-devices-as-volume-mounts = true\n"
            f'[nvidia-container-cli]\nroot = "{self.node.driver_root}"\n'
            f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{work}/cdi"]\n'
            f'[nvct]\nplain-nodes = true\ndev-root = "{self.node.tree}"\n'
            f'proc-root = "{self.node.proc}"\nsys-root = "{self.node.sys}"\n'
            'layout = "classic"\nhook-path = "/bin/true"\n'
        )
        names = (CONFIG_ENV, OWN_CONFIG_ENV)
        self.env = {
            **dict.fromkeys(names, str(config)),
            RUN_DIR_ENV: str(work / "run"),
            "NVCT_SIM_DEV": str(self.node.dev),
        }
        # Without it each `explain` makes one, in a process.
        refresh.own_plan(str(config), self.env[RUN_DIR_ENV])
        settings = load(str(config))
        self.roots = live_host.roots_of(settings)
        gpus = live_host.discover(settings, live_host.own_options(settings)).gpus
        whole = next(gpu for gpu in gpus if not gpu.mig_enabled)
        parent = next(gpu for gpu in gpus if gpu.mig)
        mig = parent.mig[-1]
        self.words = {
            "index": whole.index, "uuid": whole.uuid, "bus": whole.bus_id,
            "bus_device": whole.bus_id.removesuffix(".0"), "gpu": parent.index, "mig": mig.index,
            "mig_uuid": mig.uuid, "mig_parent": parent.uuid, "gi": mig.gi, "ci": mig.ci,
        }  # fmt: skip
        self.expected = {False: self.by_env(whole.uuid), True: self.by_env(mig.uuid)}

    def _run(self, name: str, *words: str) -> Any:
        done = invoke(name, words, env=self.env)
        assert done.exit_code == 0, (words, done.output, done.exception)
        return json.loads(done.stdout)

    def _explained(self, *words: str) -> set[str]:
        return _parts(self._run("nvct", "explain", "--json", *words)["inject"]["nodes"])

    def by_env(self, word: str) -> set[str]:
        return self._explained("--env", f"NVIDIA_VISIBLE_DEVICES={word}")

    def by_generated_name(self, word: str) -> set[str]:
        return self.by_env(f"runtime.nvidia.com/gpu={word}")

    def by_full_name(self, word: str) -> set[str]:
        return self.by_env(f"nvidia.com/gpu={word}")

    def by_annotation(self, word: str) -> set[str]:
        return self._explained("--annotation", f"cdi.k8s.io/x=nvidia.com/gpu={word}")

    def by_mount(self, word: str) -> set[str]:
        return self._explained("--mount", f"/var/run/nvidia-container-devices/{word}")

    def by_device_id(self, word: str) -> set[str]:
        spec = self._run("nvidia-ctk", "cdi", "generate", f"--device-id={word}", "--format=json")
        edits = [device["containerEdits"] for device in spec["devices"]]
        return set.union(*(_parts(edit["deviceNodes"]) for edit in edits))

    def by_configure(self, word: str) -> set[str]:
        return self.by_env(configure.device_name(word, self.roots))

    def by_list(self, word: str) -> set[str]:
        code = "from nvct.cli.container.main import nvidia_container_cli as f; f()"
        done = captured(
            [sys.executable, "-c", code, "list", f"--device={word}"],
            env=self.env, check=True, timeout=60,
        )  # fmt: skip
        return _parts({"path": line} for line in done.stdout.splitlines())


SURFACES = {
    "variable": Machine.by_env,
    "name of a device made on demand": Machine.by_generated_name,
    "full name": Machine.by_full_name,
    "annotation": Machine.by_annotation,
    "volume mount": Machine.by_mount,
    "cdi generate --device-id": Machine.by_device_id,
    "nvidia-container-cli configure": Machine.by_configure,
    "nvidia-container-cli list": Machine.by_list,
}


def _parts(nodes: Iterable[dict[str, Any]]) -> set[str]:
    paths = [str(node["path"]) for node in nodes]
    return {found[0] for path in paths if (found := PARTS.search(path))}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    work = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCT_SIM_DEV", str(work / "names/dev"))
        yield Machine(work)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_accepted_everywhere(form: str, surface: str, machine: Machine) -> None:
    word = FORMS[form].format(**machine.words)
    if "/" in word and surface in CDI:
        with pytest.raises(AssertionError):  # the program fails
            SURFACES[surface](machine, word)
        return
    expected = machine.expected["MIG" in form]
    assert len(expected) == (3 if "MIG" in form else 1)
    assert SURFACES[surface](machine, word) == expected
