# SPDX-License-Identifier: Apache-2.0
"""Defaults, the compiled form and the checks of Config."""

import json
import os
from pathlib import Path

import pytest

from nvct import paths
from nvct.config.load import KEYS
from nvct.config.model import FIELDS, Config, check, path_from, without_choice
from nvct.errors import ConfigError


def test_the_defaults_are_those_of_the_incumbent() -> None:
    config = Config()

    assert config.mode == "auto"
    assert config.runtimes == ("runc", "crun")
    assert config.spec_dirs == ("/etc/cdi", "/var/run/cdi")
    assert config.default_kind == "nvidia.com/gpu"
    assert config.annotation_prefixes == ("cdi.k8s.io/",)
    assert config.accept_envvar_when_unprivileged is True
    assert config.accept_volume_mounts is False
    assert config.swarm_resource == ()
    assert config.driver_root == "/"
    assert config.cuda_compat_mode == "ldconfig"
    assert config.log_level == "info"
    assert config.debug == ""
    assert config.cli_load_kmods is True
    assert config.layout == "auto"


@pytest.mark.parametrize(
    ("layout", "expected"), [("auto", True), ("farm", True), ("classic", False)]
)
def test_every_layout_but_classic_wants_a_view_of_the_driver(
    layout: str, *, expected: bool
) -> None:
    config = Config(layout=layout)

    check(config)

    assert config.wants_view is expected


def test_a_configuration_is_never_changed() -> None:
    config = Config()

    for name in FIELDS:
        with pytest.raises(AttributeError, match=name):
            setattr(config, name, getattr(config, name))
        assert isinstance(getattr(config, name), (bool, str, tuple)), name


def test_another_value_makes_another_configuration() -> None:
    config = Config(path="/c")

    legacy = config.replaced(mode="legacy", runtimes=["youki"])

    assert (legacy.path, legacy.mode, legacy.runtimes) == ("/c", "legacy", ("youki",))
    assert config.to_dict() == {**Config().to_dict(), "path": "/c"}


def test_the_compiled_form_survives_json_and_unknown_names_are_ignored() -> None:
    config = Config(mode="cdi", swarm_resource=["A", "B"], warnings=["a warning"])

    text = json.dumps({**config.to_dict(), "new-in-nvct-9": 1})
    restored = Config.from_dict(json.loads(text))

    assert restored.to_dict() == config.to_dict()
    assert restored.swarm_resource == ("A", "B")
    assert Config.from_dict({}).to_dict() == Config().to_dict()


@pytest.mark.parametrize(
    "flat",
    [
        {"accept_volume_mounts": 1},
        {"accept_volume_mounts": "true"},
        {"mode": None},
        {"runtimes": "runc"},
        {"runtimes": ["runc", 1]},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_in_the_compiled_form_is_refused(
    flat: dict[str, object],
) -> None:
    with pytest.raises(ConfigError, match=next(iter(flat))):
        Config.from_dict(flat)


def test_every_attribute_has_a_key_in_the_file_and_is_set_without_one() -> None:
    assert {*KEYS.values(), "engine_devices", "path", "policy", "warnings"} == set(FIELDS)
    assert set(Config().to_dict()) == set(FIELDS)


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({}, "/etc/nvidia-container-runtime/config.toml"),
        ({"XDG_CONFIG_HOME": "/x"}, "/etc/nvidia-container-runtime/config.toml"),
        ({"XDG_CONFIG_HOME": ""}, "/etc/nvidia-container-runtime/config.toml"),
        ({"XDG_CONFIG_HOME": "x"}, "/etc/nvidia-container-runtime/config.toml"),
        ({"NVIDIA_CTK_CONFIG_FILE_PATH": "/a.toml", "XDG_CONFIG_HOME": "/x"}, "/a.toml"),
        ({"NVIDIA_CTK_CONFIG_FILE_PATH": ""}, "/etc/nvidia-container-runtime/config.toml"),
    ],
    ids=str,
)
def test_the_environment_names_the_file(env: dict[str, str], path: str) -> None:
    assert path_from(env) == path


@pytest.mark.parametrize("end", ["", "/"])
def test_a_file_of_the_users_own_comes_before_the_systems(tmp_path: Path, end: str) -> None:
    user_file = tmp_path / "nvidia-container-runtime/config.toml"
    user_file.parent.mkdir()
    user_file.touch()
    assert path_from({"XDG_CONFIG_HOME": f"{tmp_path}{end}"}) == str(user_file)


@pytest.mark.parametrize(
    "name", ["NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "NVCT_RUN_DIR"]
)
def test_who_calls_cannot_choose_another_policy_than_the_hosts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "config.toml"
    monkeypatch.setattr(paths, "CONFIG_FILE", str(hosts))
    env, own, others = {name: "/x", "PATH": "/bin"}, str(tmp_path), "/"
    if os.geteuid() == 0:
        others = str(tmp_path / "others")
        os.mkdir(others)
        os.chown(others, 1000, 1000)
    assert without_choice(env, own) == env
    hosts.write_text("[nvct]\nlayout = 'farm'\n")
    assert without_choice(env, own) == env
    hosts.write_text("[nvct.policy]\ndefault = 'deny'\n")
    assert without_choice(env, own) == {"PATH": "/bin"}
    assert without_choice(env, others) == env  # a rootless engine: its user owns his runtime
    hosts.write_text("#" * (1 << 20))  # too large to be read, so it may have one
    assert without_choice(env, own) == {"PATH": "/bin"}
    hosts.unlink()
    hosts.mkdir()
    assert without_choice(env, own) == {"PATH": "/bin"}


def test_the_defaults_can_be_used_and_ldconfig_of_the_container_be_allowed() -> None:
    check(Config())
    check(Config(cli_ldconfig="/sbin/ldconfig", allow_ldconfig_from_container=True))


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("mode", "foo", "nvidia-container-runtime.mode"),
        ("layout", "farms", "nvct.layout"),
        ("farm_dir", "farm", "nvct.farm-dir"),
        ("params_mask", "yes", "nvct.params-mask"),
        ("runtimes", [], "nvidia-container-runtime.runtimes"),
        ("runtimes", [""], "nvidia-container-runtime.runtimes"),
        ("default_kind", "gpu", "modes.cdi.default-kind"),
        ("default_kind", "nvidia.com/gpu=0", "modes.cdi.default-kind"),
        ("default_kind", "a/b/c", "modes.cdi.default-kind"),
        ("annotation_prefixes", ["cdi.k8s.io/", ""], "modes.cdi.annotation-prefixes"),
        ("spec_dirs", ["/etc/cdi", "cdi"], "modes.cdi.spec-dirs"),
        ("driver_root", "run/nvidia", "nvidia-container-cli.root"),
        ("hook_path", "nvidia-cdi-hook", "nvct.hook-path"),
        ("cli_ldconfig", "/sbin/ldconfig", "nvidia-container-cli.ldconfig"),
    ],
    ids=str,
)
def test_a_value_that_no_container_can_be_created_with_is_refused(
    name: str, value: object, key: str
) -> None:
    config = Config(**{"path": "/etc/x.toml", name: value})

    with pytest.raises(ConfigError, match=key) as caught:
        check(config)

    assert caught.value.message.startswith("/etc/x.toml: ")
    assert caught.value.hint
