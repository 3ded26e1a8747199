# SPDX-License-Identifier: Apache-2.0
"""Options, variables and config file of the device plugin: precedence, and what is refused.

Config files in the forms that public repositories, charts and guides have them load with the effect
that they have with NVIDIA's plugin 0.20, or are refused as there.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.core.config_file import NamePattern, Replicas, Sharing
from nvct.agent.core.settings import Option
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.labels import settings as of_labels
from nvct.errors import NvctError

SHARED = """
version: v1
flags: {failOnInitError: no}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4, devices: [0, 1:0]}
    - {name: mig-1g.10gb, replicas: 2, rename: small}
resources:
  gpus: [{pattern: "*A100*", name: a100}]
  mig: [{pattern: 1g.*, name: nvidia.com/tiny}]
"""


def sharing(rule: str) -> str:
    return f"sharing: {{timeSlicing: {{resources: [{{name: gpu, {rule}}}]}}}}"


def resolve(
    tmp_path: Path, *words: str, env: Mapping[str, str] | None = None, config: str = ""
) -> tuple[Settings, tuple[str, ...]]:
    path = tmp_path / "config.yaml"
    path.write_text(config)
    more = [f"--config-file={path}"] if config else []
    return options.resolve([*words, *more], env or {})


def test_without_anything_the_defaults_are_the_incumbents() -> None:
    settings, warnings = options.resolve([], {})

    assert settings == Settings()
    assert warnings == ()


def test_a_key_of_the_file_that_has_no_effect_is_named(tmp_path: Path) -> None:
    """The chart sets variables, so a file of NVIDIA's README has keys without effect there."""
    env = {"FAIL_ON_INIT_ERROR": "false", "DEVICE_LIST_STRATEGY": "cdi-cri"}
    config = (
        "flags: {migStrategy: mixed, failOnInitError: false, "
        "plugin: {deviceListStrategy: envvar, deviceIDStrategy: index}}"
    )

    settings, warnings = resolve(tmp_path, "--device-id-strategy=uuid", env=env, config=config)

    assert (settings.mig_strategy, settings.device_id_strategy) == ("mixed", "uuid")
    path = tmp_path / "config.yaml"
    assert set(warnings) == {
        f"{path}: flags.plugin.deviceListStrategy has no effect: DEVICE_LIST_STRATEGY is set",
        f"{path}: flags.plugin.deviceIDStrategy has no effect: --device-id-strategy is set",
    }


PROGRAMS = (options, of_labels)


@pytest.mark.parametrize(
    ("module", "option"),
    [(m, each) for m in PROGRAMS for each in m.PROGRAM.options if each.field != "config_file"],
    ids=lambda value: value.flags[0] if isinstance(value, Option) else value.PROGRAM.name,
)
def test_every_name_of_an_option_of_a_program_sets_it(module: Any, option: Option) -> None:
    known = {"switch": "true", "numbers": "0"}
    value = known.get(option.kind) or (option.choices or ("5s",))[-1]
    ways: list[tuple[list[str], dict[str, str]]] = [([], {name: value}) for name in option.env]
    ways += [([f"{dashes}{flag}={value}"], {}) for flag in option.flags for dashes in ("-", "--")]

    values = [getattr(module.resolve(*way)[0], option.field) for way in ways]

    assert len({str(one) for one in values}) == 1
    assert value.lower() in str(values[0]).lower()


def test_lists_are_repeated_or_separated_by_commas(tmp_path: Path) -> None:
    name = "--device-list-strategy"
    for words in ([f"{name}=envvar,cdi-cri"], [name, "envvar", f"{name}=cdi-cri"]):
        settings, _ = resolve(tmp_path, *words)
        assert settings.device_list_strategy == ("envvar", "cdi-cri")
    for value in ("cdi-cri", "[cdi-cri]"):
        settings, _ = resolve(
            tmp_path, config=f"flags: {{plugin: {{deviceListStrategy: {value}}}}}"
        )
        assert settings.device_list_strategy == ("cdi-cri",)


def test_the_root_of_dev_is_the_drivers_unless_given(tmp_path: Path) -> None:
    assert (
        resolve(tmp_path, "--driver-root=/run/nvidia/driver")[0].dev_root == "/run/nvidia/driver"
    )
    assert resolve(tmp_path, "--driver-root=/a", "--dev-root=/")[0].dev_root == "/"


def test_a_relative_socket_is_below_the_working_directory_and_an_empty_one_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    settings, _ = resolve(tmp_path, "--kubelet-socket=kubelet.sock")

    assert settings.kubelet_socket == f"{tmp_path}/kubelet.sock"
    assert resolve(tmp_path, env={"KUBELET_SOCKET": ""})[0].kubelet_socket == ""


def test_the_options_of_the_readme_of_0_9_0_work(tmp_path: Path) -> None:
    settings, _ = resolve(
        tmp_path, "--mig-strategy=mixed", "--fail-on-init-error=false",
        "--nvidia-driver-root=/run/nvidia/driver", "--pass-device-specs=true",
        "--device-list-strategy=volume-mounts", "--device-id-strategy=index",
    )  # fmt: skip

    assert settings == Settings(
        mig_strategy="mixed", fail_on_init_error=False, driver_root="/run/nvidia/driver",
        dev_root="/run/nvidia/driver", pass_device_specs=True,
        device_list_strategy=("volume-mounts",), device_id_strategy="index",
    )  # fmt: skip


def test_a_config_file_shares_and_names_resources(tmp_path: Path) -> None:
    settings, warnings = resolve(tmp_path, config=SHARED)

    assert warnings == ()
    assert settings.sharing.one_each
    assert not settings.fail_on_init_error
    assert settings.sharing.replicas == (
        Replicas(
            name="nvidia.com/gpu", replicas=4, rename="nvidia.com/gpu.shared", devices=("0", "1:0")
        ),
        Replicas(name="nvidia.com/mig-1g.10gb", replicas=2, rename="nvidia.com/small"),
    )
    assert settings.gpu_names == (NamePattern(pattern="*A100*", name="nvidia.com/a100"),)
    assert settings.mig_names == (NamePattern(pattern="1g.*", name="nvidia.com/tiny"),)


def test_an_unknown_key_is_a_warning_with_its_path(tmp_path: Path) -> None:
    _, warnings = resolve(
        tmp_path,
        config="flags: {migStrateg: mixed, gfd: {oneshot: true}, plugin: {x: 1}}\nmore: {a: b}",
    )

    assert [line.split(": ", 1)[1] for line in warnings] == [
        "unknown key flags.migStrateg has no effect",
        "unknown key flags.plugin.x has no effect",
        "unknown key more has no effect",
    ]


@pytest.mark.parametrize(
    ("words", "config", "sentence"),
    [
        (["--nonsense"], "", "'--nonsense' is no option of nvidia-device-plugin"),
        (["--fail-on-init-error", "false"], "", "'false' is no option of nvidia-device-plugin"),
        (["--fail-on-init-error=no"], "", "--fail-on-init-error must be true or false, not 'no'"),
        (["--mig-strategy"], "", "--mig-strategy needs a value"),
        (["--config-file={}/utf-16"], "", "utf-16 is malformed: it is not UTF-8"),
        (["--config-file=/nowhere"], "", "config file /nowhere: No such file or directory"),
        (["--mig-strategy=both"], "", "invalid --mig-strategy option: 'both'"),
        (["--imex-channel-ids=1"], "", "the IMEX channels must be none or 0"),
        (["--imex-channel-ids=a"], "", "--imex-channel-ids must be numbers, not 'a'"),
        ([], "{", "is malformed in line 1: expected the node content"),
        ([], "flags: {migStrategy: 2024-01-01}", "invalid --mig-strategy option: '2024-01-01'"),
        ([], "flags: {migStrategy: 2024-13-45}", "invalid --mig-strategy option: '2024-13-45'"),
        ([], "a: 1\nflags: {}\nflags: {}", "is malformed in line 3: duplicate key flags"),
        ([], "a: \x01", "is malformed: unacceptable character"),
        ([], "a: !!binary aaa", "the type tag:yaml.org,2002:binary is not allowed"),
        ([], "a: !!timestamp 9", "the type tag:yaml.org,2002:timestamp is not allowed"),
        ([], "a: !!int zz", "is malformed in line 1: zz is no decimal number"),
        ([], "a: !!bool zz", "is malformed in line 1: zz is neither true nor false"),
        ([], "a: !!float zz", "is malformed in line 1: zz is no number"),
        ([], "a: !!python/object:os.system x", "is not allowed"),
        ([], "a: 0x10", "is malformed in line 1: 0x10 is no decimal number"),
        ([], f"a: {'9' * 5000}", "is malformed in line 1: the number 999999999999999999... is"),
        ([], "[" * 5000, "is malformed in line 1: nested too deeply"),
        ([], "? [a]\n: b", "is malformed in line 1: a key is no string"),
        ([], "x: " + "a" * (1 << 20), "has more than 1 MiB"),
        ([], sharing("replicas: 010"), "is malformed in line 1: 010 is no decimal number"),
        ([], sharing("replicas: .nan"), "number of replicas must be >= 2"),
        ([], sharing("replicas: 2.0"), "number of replicas must be >= 2"),
        ([], sharing("replicas: 32769"), "number of replicas must be <= 32768"),
        (["--device-list-strategy=auto,envvar"], "", "auto cannot be combined"),
        ([], "[]", "is no table of settings"),
        ([], "flags: {failOnInitError: 'yes'}", "flags.failOnInitError in "),
        ([], "sharing: {timeSlicing: {resources: [{replicas: 2}]}}", "no resource name specified"),
        ([], "resources: {exclude: '*T4*'}", "resources.exclude must be a list, not '*T4*'"),
        ([], "resources: {exclude: [{model: T4}]}", "resources.exclude must be a list"),
        ([], "resources: {gpus: [{pattern: x}]}", "each of resources.gpus needs a pattern"),
        ([], f"resources: {{gpus: [{{pattern: x, name: {'a' * 60}}}]}}", "is no resource name"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(
    words: list[str], config: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "utf-16").write_bytes(b"\xff\xfe")

    with pytest.raises(NvctError) as caught:
        resolve(tmp_path, *(word.format(tmp_path) for word in words), config=config)

    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


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
FOUR = Replicas(name="nvidia.com/gpu", replicas=4)


def sliced(*replicas: Replicas) -> Settings:
    return Settings(sharing=Sharing(strategy="time-slicing", replicas=replicas))


def by_mps(*replicas: Replicas) -> Settings:
    return Settings(sharing=Sharing(strategy="mps", replicas=replicas), mps_root="/mps")


@pytest.mark.parametrize(
    ("text", "expected", "unknown"),
    [
        (FLAGS, Settings(), []),
        (FLAGS + SLICES, sliced(FOUR), []),
        (f"# a comment\n---\n{FLAGS}", Settings(), []),
        # The case of keys does not matter above the rules, and below them it does.
        ("flags: {migstrategy: single}", Settings(mig_strategy="single"), []),
        (SLICES.replace("timeSlicing", "timeslicing"), sliced(FOUR), []),
        (SLICES.replace("renameByDefault: false", "rename: true"), sliced(FOUR),
         ["sharing.timeSlicing.rename"]),
        ("flags: {migStrategy: single, migstrategy: mixed}", Settings(mig_strategy="single"),
         ["flags.migstrategy"]),
        # Keys of sharing in a wrong place have no effect.
        ("flags: {renameByDefault: true, failRequestsGreaterThanOne: false}\n" + SLICES,
         sliced(FOUR), ["flags.renameByDefault", "flags.failRequestsGreaterThanOne"]),
        # Memory in replicas is possible as long as the kubelet reads it.
        (SLICES.replace("4 ", "16384 "), sliced(replace(FOUR, replicas=16384)), []),
        (f"version: v1\nsharing:\n  timeSlicing:\n    resources:{EACH}",
         sliced(*(
             Replicas(name="nvidia.com/gpu", replicas=8, rename=f"nvidia.com/gpu-{n}",
                      devices=(str(n),))
             for n in range(2)
         )), []),
        (JSON,
         Settings(fail_on_init_error=False,
                  gpu_names=(NamePattern(pattern="*", name="nvidia.com/gpu"),)), []),
        # A strategy that is not used may be malformed.
        *((SLICES.replace("timeSlicing", "mps") + f"  timeSlicing: {other}\n",
           by_mps(FOUR), [])
          for other in ("[1]", "{resources: [abc]}")),
        # MPS of a fork with keys of its own.
        (SLICES.replace("timeSlicing", "mps") + "individualGPU: {enabled: true}\n",
         by_mps(FOUR), ["individualGPU"]),
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
