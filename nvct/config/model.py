# SPDX-License-Identifier: Apache-2.0
"""The configuration: the keys of config.toml and their defaults.

Hot: the create lane gets a Config from its compiled form (`Config.from_dict`), never from TOML.
Keys and defaults are those of nvidia-container-toolkit v1.20; those of the table [nvct] are ours.
Contract: one attribute per key, with the type of its default; "" means "not set"; lists are tuples
of str. A Config never changes. This module reads neither files nor the environment.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn, TypeAlias

    Texts: TypeAlias = tuple[str, ...]
    Value: TypeAlias = "bool | str | list[str]"

MODES = ("auto", "jit-cdi", "cdi", "csv", "legacy")
LAYOUTS = ("auto", "classic", "farm")
SWITCHES = ("auto", "true", "false")
COMPAT_OTHERS = ("disabled", "ldconfig", "mount")  # Values of cuda-compat-mode besides hook
UNCHECKED, CHECKED = "unchecked", "checked"
LOG_LEVELS = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")
DRIVER_CAPABILITIES = (
    "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
)  # fmt: skip


class Config:
    """The configuration of the shim, the hooks and the generator.

    Attributes, where `KEYS` in `load` does not say enough:
        path: the file's, "" if there is none.
        supported_driver_capabilities: "all" is expanded, unknown names are kept.
        driver_root: "/" if unset; otherwise it never ends in a slash.
        debug: "" if off (unset, empty or /dev/null).
        log_level: always valid.
        hook_path: the hook program in generated specs.
        layout: auto is farm if a view is a folder of links, and classic if each of its files
            would be a separate mount.
        params_mask: "auto", "true" or "false"; auto masks the driver's params if a hook runs
            anyway.
        dev_root, proc_root, sys_root, plain_nodes: where a simulated node is.
        policy: the rules, each a JSON object for `nvct.container.request.policy`.
        engine_devices: whether the rules also apply to devices that the engine gives.
    """

    path = ""
    warnings: Texts = ()
    disable_require = False
    swarm_resource: Texts = ()
    accept_envvar_when_unprivileged = True
    accept_volume_mounts = False
    supported_driver_capabilities: Texts = DRIVER_CAPABILITIES

    driver_root = "/"
    cli_path = ""
    cli_environment: Texts = ()
    cli_debug = ""
    cli_ldcache = ""
    cli_load_kmods = True
    cli_no_pivot = False
    cli_no_cgroups = False
    cli_user = ""
    cli_ldconfig = "@/sbin/ldconfig"

    ctk_path = paths.CTK_PROGRAM
    debug = ""
    log_level = "info"
    runtimes: Texts = ("runc", "crun")
    mode = "auto"
    csv_mount_spec_path = "/etc/nvidia-container-runtime/host-files-for-container.d"
    csv_compat_container_root = ""
    spec_dirs: Texts = paths.CDI_SPEC_DIRS
    default_kind = paths.GPU_KIND
    annotation_prefixes: Texts = ("cdi.k8s.io/",)
    jit_feature_flags: Texts = ()
    jit_disable_hooks: Texts = ()
    cuda_compat_mode = "ldconfig"
    runtime_hook_path = paths.RUNTIME_HOOK_PROGRAM
    skip_mode_detection = False

    allow_cuda_compat_libs_from_container = False
    allow_ldconfig_from_container = False
    allow_unknown_oci_spec_fields = False
    disable_cuda_compat_lib_hook = False
    disable_imex_channel_creation = False
    ignore_imex = False
    no_additional_gids = False

    layout = "auto"
    farm_dir = paths.FARM_DIR
    params_mask = "auto"
    hook_path = paths.HOOK_PATH
    dev_root = ""
    proc_root = "/proc"
    sys_root = "/sys"
    plain_nodes = False
    policy: Texts = ()
    engine_devices = UNCHECKED

    def __init__(self, **values: object) -> None:
        attributes = self.__dict__
        for name, value in values.items():
            attributes[name] = _checked(name, value, FIELDS[name])

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Config.{name} cannot be set")

    def replaced(self, **values: object) -> Config:
        """Return this configuration with some values replaced."""
        return Config(**{**self.__dict__, **values})

    @classmethod
    def from_dict(cls, flat: Mapping[str, object]) -> Config:
        """Return a Config from the result of `to_dict`; ConfigError if a type is wrong."""
        return cls(**{name: flat[name] for name in FIELDS if name in flat})

    @property
    def bounds_capabilities(self) -> bool:
        """Whether supported-driver-capabilities leaves out a driver capability."""
        return not set(DRIVER_CAPABILITIES) <= set(self.supported_driver_capabilities)

    @property
    def wants_view(self) -> bool:
        """Whether containers get a farm view of the driver if possible."""
        return self.layout != "classic"

    def wants_compat(self, mode: str) -> bool:
        """Report whether CUDA compatibility libraries of an image may replace the driver's.

        In mode legacy, nvidia-container-toolkit v1.20 passes cuda-compat-mode to
        nvidia-container-cli; the feature flag has no effect on that program.
        """
        compat_mode = self.cuda_compat_mode
        if mode != "legacy" or compat_mode == "hook":
            return not self.disable_cuda_compat_lib_hook
        if compat_mode in COMPAT_OTHERS:
            return compat_mode != "disabled"
        return self.allow_cuda_compat_libs_from_container

    def to_dict(self) -> dict[str, Value]:
        """Return attribute names and values, for JSON."""
        values = {**FIELDS, **self.__dict__}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


FIELDS: dict[str, bool | str | Texts] = {
    name: value
    for name, value in vars(Config).items()
    if name[0] != "_" and isinstance(value, (bool, str, tuple))
}
"""The attributes of Config, with their defaults."""


def _checked(name: str, value: object, default: object) -> object:
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        if not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{name} holds something other than strings: {value!r:.80}")
        return tuple(value)
    if type(value) is not type(default):
        kind = "list" if isinstance(default, tuple) else type(default).__name__
        raise ConfigError(
            f"{name} is {value!r:.80}, not a {kind}",
            hint="remove the compiled configuration: the next create makes it again",
        )
    return value


def path_from(env: Mapping[str, str]) -> str:
    """Return the path of config.toml for an environment; the file need not exist.

    The order is that of nvidia-container-toolkit v1.20: explicit path, XDG_CONFIG_HOME, /etc.
    XDG_CONFIG_HOME is ignored if it is relative (XDG base directory specification) or has no such
    file: Podman 5 sets it for every rootless container, but only on create.
    """
    explicit = env.get(paths.CONFIG_ENV, "")
    if explicit:
        return explicit
    home = env.get("XDG_CONFIG_HOME", "")
    user_file = f"{home.rstrip('/')}/{paths.CONFIG_NAME}"
    return user_file if home.startswith("/") and _exists(user_file) else paths.CONFIG_FILE


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


SIZE_LIMIT = 1 << 20
"""The largest config.toml, in bytes."""
CALLERS = (paths.CONFIG_ENV, "XDG_CONFIG_HOME", paths.RUN_DIR_ENV)
"""Variables by which a caller could choose another policy."""


def without_choice(env: dict[str, str], root: str = "/") -> dict[str, str]:
    """Return an environment without the variables by which a caller could evade the host's policy.

    Podman starts its runtime with its caller's environment. So if the host's config.toml has a
    policy, root uses that file alone; the user of a rootless engine has a file of their own. The
    launcher does the same (`keeps_policy` in nvct/launcher/launcher.c).
    """
    if any(map(env.get, CALLERS)) and posix.stat(root).st_uid == posix.geteuid() and _has_policy():
        return {name: value for name, value in env.items() if name not in CALLERS}
    return env


def _has_policy() -> bool:
    try:
        fd = posix.open(paths.CONFIG_FILE, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        data = posix.read(fd, SIZE_LIMIT)
        return b"policy" in data or len(data) == SIZE_LIMIT
    except OSError:
        return True
    finally:
        posix.close(fd)


def check(config: Config) -> None:
    """Refuse values with which no container can be created.

    Only create calls it: a bad value must not break delete or --version, as it does in
    nvidia-container-toolkit v1.20. ConfigError if a value is not valid.
    """
    where = config.path or "the configuration"
    mode = "nvidia-container-runtime.mode"
    _one_of(where, mode, config.mode, MODES)
    _one_of(where, "nvct.layout", config.layout, LAYOUTS)
    _one_of(where, "nvct.params-mask", config.params_mask, SWITCHES)
    if not config.runtimes or "" in config.runtimes:
        _refuse(where, "nvidia-container-runtime.runtimes", config.runtimes, "name runc or crun")
    modes = "nvidia-container-runtime.modes.cdi"
    vendor, slash, cls = config.default_kind.partition("/")
    if not (vendor and slash and cls) or "/" in cls or "=" in config.default_kind:
        _refuse(where, f"{modes}.default-kind", config.default_kind, "write VENDOR/CLASS")
    if "" in config.annotation_prefixes:
        # An empty prefix would turn every annotation into a device request.
        _refuse(where, f"{modes}.annotation-prefixes", "", "remove the empty prefix")
    for directory in config.spec_dirs:
        _absolute(where, f"{modes}.spec-dirs", directory)
    _absolute(where, "nvidia-container-cli.root", config.driver_root)
    _absolute(where, "nvct.hook-path", config.hook_path)
    _absolute(where, "nvct.farm-dir", config.farm_dir)
    _absolute(where, "nvct.proc-root", config.proc_root)
    _absolute(where, "nvct.sys-root", config.sys_root)
    ldconfig = config.cli_ldconfig
    if ldconfig and not ldconfig.startswith("@") and not config.allow_ldconfig_from_container:
        # Without the @ the container's own ldconfig would run, as a program of the image.
        _refuse(where, "nvidia-container-cli.ldconfig", ldconfig, "put @ before the host's path")


def _one_of(where: str, key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        _refuse(where, key, value, f"use one of: {', '.join(allowed)}")


def _absolute(where: str, key: str, value: str) -> None:
    if not value.startswith("/"):
        _refuse(where, key, value, "write an absolute path")


def _refuse(where: str, key: str, value: object, hint: str) -> None:
    raise ConfigError(f"{where}: {key} cannot be {value!r:.80}", hint=hint)
