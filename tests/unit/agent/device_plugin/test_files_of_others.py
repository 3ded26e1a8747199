# SPDX-License-Identifier: Apache-2.0
"""Config files in the forms that public repositories, charts and guides have them.

Each loads with the effect that it has with NVIDIA's plugin 0.20, or is refused as there.
"""

from pathlib import Path

import pytest

from nvct.agent.core.config_file import Replicas
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


@pytest.mark.parametrize("text", [FLAGS, SLICES, FLAGS + SLICES, f"# a comment\n---\n{FLAGS}"])
def test_the_files_of_most_guides_load(text: str, tmp_path: Path) -> None:
    settings, warnings = load(tmp_path, text)

    assert warnings == ()
    assert settings.replicas == (
        (Replicas(name="nvidia.com/gpu", replicas=4),) if "sharing" in text else ()
    )


def test_the_case_of_keys_does_not_matter_above_the_rules(tmp_path: Path) -> None:
    text = FLAGS.replace("migStrategy", "migstrategy") + SLICES.replace(
        "timeSlicing", "timeslicing"
    )
    settings, warnings = load(tmp_path, text.replace('"none"', "single"))

    assert (settings.mig_strategy, len(settings.replicas), warnings) == ("single", 1, ())


def test_below_them_it_does(tmp_path: Path) -> None:
    settings, warnings = load(tmp_path, SLICES.replace("renameByDefault: false", "rename: true"))

    assert settings.replicas[0].rename == ""
    assert warned(warnings) == ["sharing.timeSlicing.rename"]


def test_both_spellings_of_a_key_are_no_choice(tmp_path: Path) -> None:
    settings, warnings = load(tmp_path, "flags: {migStrategy: single, migstrategy: mixed}")

    assert (settings.mig_strategy, warned(warnings)) == ("single", ["flags.migstrategy"])


def test_misplaced_keys_of_sharing_have_no_effect_and_are_named(tmp_path: Path) -> None:
    text = "flags: {migStrategy: none, renameByDefault: true, failRequestsGreaterThanOne: false}\n"
    settings, warnings = load(tmp_path, text + SLICES)

    assert settings.replicas[0].rename == ""
    assert warned(warnings) == ["flags.renameByDefault", "flags.failRequestsGreaterThanOne"]


@pytest.mark.parametrize("other", ["[1]", "abc", "{resources: abc}", "{resources: [abc]}"])
def test_a_strategy_that_is_not_used_may_be_malformed(other: str, tmp_path: Path) -> None:
    text = (
        f"sharing:\n  mps: {{resources: [{{name: gpu, replicas: 2}}]}}\n  timeSlicing: {other}\n"
    )

    settings, _ = load(tmp_path, text, "--mps-root=/run/nvidia/mps")

    assert settings.replicas[0].replicas == 2


def test_memory_in_replicas_is_possible_as_long_as_the_kubelet_reads_it(tmp_path: Path) -> None:
    settings, _ = load(tmp_path, SLICES.replace("4 ", "16384 "))

    assert settings.replicas[0].replicas == 16384


def test_a_resource_for_each_gpu(tmp_path: Path) -> None:
    """As the values of a VDI product's chart; NVIDIA's plugin shares all GPUs under one name."""
    rules = "".join(
        f"""
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu-{n}
      devices:
      - "{n}"
      replicas: 8"""
        for n in range(2)
    )
    settings, warnings = load(
        tmp_path, f"version: v1\nsharing:\n  timeSlicing:\n    resources:{rules}"
    )

    assert warnings == ()
    assert [(r.rename, r.devices) for r in settings.replicas] == [
        ("nvidia.com/gpu-0", ("0",)),
        ("nvidia.com/gpu-1", ("1",)),
    ]


def test_json_of_a_config_map(tmp_path: Path) -> None:
    settings, warnings = load(
        tmp_path,
        '{"version": "v1", "flags": {"migStrategy": "none", "failOnInitError": false, '
        '"deviceDiscoveryStrategy": "auto"}, '
        '"resources": {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]}}',
    )

    assert (settings.fail_on_init_error, warnings) == (False, ())
    assert settings.gpu_names[0].pattern == "*"


def test_mps_of_a_fork_with_keys_of_its_own(tmp_path: Path) -> None:
    text = SLICES.replace("timeSlicing", "mps") + "individualGPU: {enabled: true}\n"
    settings, warnings = load(tmp_path, text, "--mps-root=/run/nvidia/mps")

    assert (settings.mps, settings.one_each) == (True, False)
    assert warned(warnings) == ["individualGPU"]


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


def test_a_whole_config_map_is_no_config_file_and_its_keys_are_named(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\ndata:\n  any: |-\n    version: v1\n"

    assert warned(load(tmp_path, text)[1]) == ["apiVersion", "kind", "data"]
