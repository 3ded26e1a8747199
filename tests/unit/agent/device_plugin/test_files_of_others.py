# SPDX-License-Identifier: Apache-2.0
"""Config files in the forms that public repositories, charts and guides have them.

Each loads with the effect that it has with NVIDIA's plugin 0.20, or is refused as there.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.agent.core.config_file import NamePattern, Replicas
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import NvctError

FLAGS = """\
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
"""
SLICES = """\
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: false
    resources:
      - name: nvidia.com/gpu
        replicas: 4  # each GPU is four
"""


def load(folder: Path, text: str, *words: str) -> tuple[Settings, tuple[str, ...]]:
    path = folder / "config.yaml"
    path.write_text(text)
    return options.resolve([f"--config-file={path}", *words], {})


def warned(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition("unknown key ")[2].partition(" ")[0] for warning in warnings]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        # As a user interface writes it before somebody adds a resource.
        (SLICES.partition("    resources:")[0] + "    resources: []", "no resources specified"),
        (SLICES.replace("        replicas: 4  # each GPU is four\n", ""), "no replicas specified"),
        (SLICES.replace("4 ", "1 "), "number of replicas must be >= 2"),
        (SLICES.replace("4 ", '"4" '), "number of replicas must be >= 2"),
        (SLICES + "        devices: {names: [Tesla T4]}\n", "devices must be all, a number or a"),
        (SLICES + "        devices: [Tesla T4]\n", "devices must be all, a number or a list"),
        (SLICES.replace("nvidia.com/gpu", "NVIDIA.com/GPU"), "is no resource name"),
        (FLAGS.replace("v1", "v2"), "unknown version 'v2'"),
        (FLAGS.replace("  plugin:", "\tplugin:"), "malformed"),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {any: x}\n---\nversion: v1\n",
            "another document",
        ),
    ],
)
def test_what_the_incumbent_refuses_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(NvctError) as caught:
        load(tmp_path, text)

    assert sentence in caught.value.message


EACH = "".join(
    f'\n    - {{name: nvidia.com/gpu, rename: nvidia.com/gpu-{n}, devices: ["{n}"], replicas: 8}}'
    for n in range(2)
)
"""Of the values of a VDI product's chart; NVIDIA's plugin shares all GPUs under one name."""
JSON = """
{"version": "v1", "flags": {"failOnInitError": false, "deviceDiscoveryStrategy": "auto"},
 "resources": {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]}}
"""
FOUR = (Replicas(name="nvidia.com/gpu", replicas=4),)


@pytest.mark.parametrize(
    ("text", "expected", "unknown"),
    [
        (FLAGS, Settings(), []),
        (FLAGS + SLICES, Settings(replicas=FOUR), []),
        (f"# a comment\n---\n{FLAGS}", Settings(), []),
        # The case of keys does not matter above the rules, and below them it does.
        ("flags: {migstrategy: single}", Settings(mig_strategy="single"), []),
        (SLICES.replace("timeSlicing", "timeslicing"), Settings(replicas=FOUR), []),
        (SLICES.replace("renameByDefault: false", "rename: true"), Settings(replicas=FOUR),
         ["sharing.timeSlicing.rename"]),
        ("flags: {migStrategy: single, migstrategy: mixed}", Settings(mig_strategy="single"),
         ["flags.migstrategy"]),
        # Keys of sharing in a wrong place have no effect.
        ("flags: {renameByDefault: true, failRequestsGreaterThanOne: false}\n" + SLICES,
         Settings(replicas=FOUR), ["flags.renameByDefault", "flags.failRequestsGreaterThanOne"]),
        # Memory in replicas is possible as long as the kubelet reads it.
        (SLICES.replace("4 ", "16384 "), Settings(replicas=(replace(FOUR[0], replicas=16384),)), []),
        (f"version: v1\nsharing:\n  timeSlicing:\n    resources:{EACH}",
         Settings(replicas=tuple(
             Replicas(name="nvidia.com/gpu", replicas=8, rename=f"nvidia.com/gpu-{n}",
                      devices=(str(n),))
             for n in range(2)
         )), []),
        (JSON,
         Settings(fail_on_init_error=False,
                  gpu_names=(NamePattern(pattern="*", name="nvidia.com/gpu"),)), []),
        # A strategy that is not used may be malformed.
        *((SLICES.replace("timeSlicing", "mps") + f"  timeSlicing: {other}\n",
           Settings(replicas=FOUR, mps=True, mps_root="/mps", one_each=False), [])
          for other in ("[1]", "{resources: [abc]}")),
        # MPS of a fork with keys of its own.
        (SLICES.replace("timeSlicing", "mps") + "individualGPU: {enabled: true}\n",
         Settings(replicas=FOUR, mps=True, mps_root="/mps"), ["individualGPU"]),
        # A whole ConfigMap is no config file.
        ("apiVersion: v1\nkind: ConfigMap\ndata:\n  any: |-\n    version: v1\n", Settings(),
         ["apiVersion", "kind", "data"]),
    ],
)  # fmt: skip
def test_each_loads_with_its_effect(
    text: str, expected: Settings, unknown: list[str], tmp_path: Path
) -> None:
    settings, warnings = load(tmp_path, text, f"--mps-root={expected.mps_root}")

    assert replace(settings, config_file="") == expected
    assert warned(warnings) == unknown
