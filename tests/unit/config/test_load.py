# SPDX-License-Identifier: Apache-2.0
"""config.toml as users and the incumbent's packages write it."""

import os
import socket
from pathlib import Path

import pytest

from nvct.config.load import from_toml, load
from nvct.config.model import DRIVER_CAPABILITIES, SIZE_LIMIT, Config
from nvct.errors import ConfigError

# Every key that there is, each with another value than its default.
EVERYTHING = """
disable-require = true
swarm-resource = " DOCKER_RESOURCE_GPU, OTHER ,"
accept-nvidia-visible-devices-envvar-when-unprivileged = false
accept-nvidia-visible-devices-as-volume-mounts = true
supported-driver-capabilities = "compute,utility"
[nvidia-container-cli]
root = "/run/nvidia/driver/"
path = "/usr/bin/nvidia-container-cli"
environment = ["A=B"]
debug = "/var/log/nvidia-container-toolkit.log"
ldcache = "/etc/ld.so.cache"
load-kmods = false
no-pivot = true
no-cgroups = true
user = "root:video"
ldconfig = "@/sbin/ldconfig.real"
[nvidia-ctk]
path = "/opt/nvidia-ctk"
[nvidia-container-runtime]
debug = "/var/log/nvidia-container-runtime.log"
log-level = "DEBUG"
runtimes = ["crun"]
mode = "cdi"
[nvidia-container-runtime.modes.csv]
mount-spec-path = "/csv"
compat-container-root = "/usr/local/cuda/other"
[nvidia-container-runtime.modes.cdi]
spec-dirs = ["/cdi"]
default-kind = "example.com/gpu"
annotation-prefixes = ["a/", "b/"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-feature-flags = ["flag"]
nvcdi-disable-hooks = ["all"]
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "hook"
[nvidia-container-runtime-hook]
path = "/opt/hook"
skip-mode-detection = true
[features]
allow-cuda-compat-libs-from-container = true
allow-ldconfig-from-container = true
allow-unknown-oci-spec-fields = true
disable-cuda-compat-lib-hook = true
disable-imex-channel-creation = true
ignore-imex-channel-requests = true
no-additional-gids-for-device-nodes = true
[nvct]
layout = "classic-too"
farm-dir = "/farm"
params-mask = true
hook-path = "/opt/nvidia-cdi-hook"
dev-root = "/sim"
proc-root = "/sim/proc"
sys-root = "/sim/sys"
plain-nodes = true
[nvct.policy]
default = "ignore"
engine-devices = "checked"
"""


def test_a_missing_or_empty_file_means_the_defaults_unless_it_is_required(tmp_path: Path) -> None:
    path = str(tmp_path / "config.toml")
    assert load(path).to_dict() == load("/dev/null").to_dict() | {"path": ""} == Config().to_dict()
    with pytest.raises(ConfigError, match="does not exist"):
        load(path, required=True)
    (tmp_path / "config.toml").touch()
    assert load(path).to_dict() == {**Config().to_dict(), "path": path}
    assert from_toml(b"\xef\xbb\xbfdisable-require = true\n", "c").disable_require  # a BOM


def test_every_key_is_read() -> None:
    config = from_toml(EVERYTHING.encode(), "x")

    default = Config().to_dict()
    unchanged = {name for name, value in config.to_dict().items() if value == default[name]}
    assert unchanged == {"warnings"}
    assert config.swarm_resource == ("DOCKER_RESOURCE_GPU", "OTHER")
    assert config.driver_root == "/run/nvidia/driver"
    assert config.log_level == "debug"
    assert config.supported_driver_capabilities == ("compute", "utility")
    assert config.annotation_prefixes == ("a/", "b/")
    assert config.ignore_imex is True


@pytest.mark.parametrize(
    ("text", "value"), [("true", "true"), ("false", "false"), ('"auto"', "auto"), ('"x"', "x")]
)
def test_a_switch_is_a_boolean_or_auto(text: str, value: str) -> None:
    assert from_toml(f"[nvct]\nparams-mask = {text}".encode(), "x").params_mask == value
    with pytest.raises(ConfigError, match=r"params-mask is 1, not a string"):
        from_toml(b"[nvct]\nparams-mask = 1", "x")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        *((f'[nvidia-container-cli]\nroot = "{root}"', "driver_root", "/")
          for root in ("", "/", "//")),
        ('[nvidia-container-runtime]\ndebug = "/dev/null"', "debug", ""),
        ('supported-driver-capabilities = "all"', "supported_driver_capabilities", DRIVER_CAPABILITIES),
        ('x = 1\n[features]\ny = 2\n[nvidia-container-cli.z]\na = "b"', "path", "x"),
    ],
    ids=["no root", "root", "root twice", "debug to /dev/null", "all capabilities", "unknown keys"],
)  # fmt: skip
def test_a_value_that_means_the_default_is_the_default(
    text: str, name: str, value: object
) -> None:
    config = from_toml(text.encode(), "x")

    assert config.to_dict() == {**Config().to_dict(), "path": "x"}
    assert getattr(config, name) == value


def test_an_unknown_log_level_is_replaced_with_a_warning() -> None:
    config = from_toml(b'[nvidia-container-runtime]\nlog-level = "chatty"', "/c.toml")

    assert config.log_level == "info"
    assert config.warnings == (
        "/c.toml: nvidia-container-runtime.log-level is 'chatty', which is not a level; info is used",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('disable-require = "true"', "x: disable-require is 'true', not true or false"),
        ("disable-require = 1", "x: disable-require is 1, not true or false"),
        ("swarm-resource = []", "x: swarm-resource is [], not a string"),
        ("[nvidia-container-runtime]\nmode = 5", "x: nvidia-container-runtime.mode is 5, not a string"),
        (
            '[nvidia-container-runtime]\nruntimes = "runc"',
            "x: nvidia-container-runtime.runtimes is 'runc', not an array of strings",
        ),
        (
            "[nvidia-container-runtime]\nruntimes = [1]",
            "x: nvidia-container-runtime.runtimes is [1], not an array of strings",
        ),
        (
            "nvidia-container-runtime = 3",
            "x: nvidia-container-runtime is 3, not a table",
        ),
        (
            "[nvidia-container-runtime]\nmodes = 3",
            "x: nvidia-container-runtime.modes is 3, not a table",
        ),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(text.encode(), "x")

    assert caught.value.message == message


@pytest.mark.parametrize(
    "data",
    [b"mode = ", b"[a", b"a = 1\na = 2", b"\xff\xfe", b"a = " + b"[" * 5000],
    ids=["no value", "open table", "twice", "no UTF-8", "nested"],
)
def test_malformed_toml_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^/c.toml is not TOML: "):
        from_toml(data, "/c.toml")


@pytest.mark.parametrize("kind", ["directory", "fifo", "link to a fifo", "device"])
def test_other_file_types_are_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    if kind == "fifo":
        path = tmp_path / "fifo"

    with pytest.raises(ConfigError) as caught:
        load(str(path))

    assert caught.value.message == f"{path} is no regular file"
    assert caught.value.hint == "replace it by a file of settings"


def test_a_socket_is_no_configuration(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "config.toml"))
        with pytest.raises(ConfigError, match="cannot be read: No such device or address"):
            load(str(tmp_path / "config.toml"))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"#" * (SIZE_LIMIT + 1))

    with pytest.raises(ConfigError, match="larger than"):
        load(str(file))
