# SPDX-License-Identifier: Apache-2.0
"""The shim's configuration: config.toml, compiled once and checked on every use.

Hot. Parsing TOML costs 13 ms, so the cold side does it once. The run directory holds the result
as JSON, with a fingerprint of config.toml, and launcher.conf for the launcher.
"""

from __future__ import annotations

import posix
import time

from nvct import paths
from nvct.config.model import CHECKED, UNCHECKED, Config, path_from
from nvct.container.plan import fingerprints
from nvct.errors import ConfigError, DocumentError, NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.container.plan.store import Store

FORMAT = 3
CONFIG_LIMIT = 1 << 20
AS_BYTES = ("utf-8", "surrogateescape")  # as paths are decoded
LAUNCHER_WORDS = (
    "NVIDIA_",
    "CUDA_VERSION",
    "nvidia-container-devices",
    paths.RUNTIME_HOOK_PROGRAM,
    paths.RUNTIME_HOOK_ALIAS,
)

CHARACTERS = '"type":"c","access":"'
ENGINE_DEVICES = (
    ":195", ": 195", '"major":-', '"major": -', '"type":"a"', '"allow": true',
    '"allow":true,"access"', *[CHARACTERS + access for access in ("r", "w", "mr", "mw")],
    '"type":"c","minor"', "nvidia-caps", "nvswitch", '"source":"/dev',
    "CAP_SYS_ADMIN", "listenerPath", '"closID"', "org.systemd.property.Device",
    "org.systemd.property.BPFProgram", "run.oci.", "org.criu.",
    *[f'"major":{tens}' for tens in (23, 24, 25, *range(38, 52))],
)  # fmt: skip
"""Every config.json that gives an NVIDIA device contains one of these: its major, a rule for every
device, an annotation that the runtime obeys, CAP_SYS_ADMIN, or a mount of /dev, because without a
control group nothing refuses its nodes. The launcher itself looks for the other ways out of a
control group (the line `host`). Majors of NVIDIA's other drivers are among 234-254 and 384-511,
which Linux assigns (fs/char_dev.c). Engines write no spaces; a rule with spaces always matches."""


def load_or_default(
    store: Store, env: Mapping[str, str], cold: str
) -> tuple[Config, NvctError | None]:
    """Return the configuration in force and None, or `default_for` and the error of its file."""
    try:
        return load(store, env, cold), None
    except NvctError as error:  # matters only if there is a request
        return default_for(path_from(env)), error


def default_for(path: str) -> Config:
    """Return the defaults in place of a config.toml that is not valid.

    If the file seems to say engine-devices = "checked", so do the defaults; the engine's devices
    are then refused.
    """
    from nvct.linux.files import read_bytes

    try:
        text = read_bytes(path, CONFIG_LIMIT)  # the key or its value may be misspelt
        is_checked = b"engine-device" in text or b"checked" in text
    except OSError:
        is_checked = False
    except DocumentError:  # too large, or not a file
        is_checked = True
    return Config(engine_devices=CHECKED if is_checked else UNCHECKED)


def load(store: Store, env: Mapping[str, str], cold: str) -> Config:
    """Return the configuration in force, compiled if the stored one is stale.

    Raises ConfigError.
    """
    path = path_from(env)
    fact = fingerprints.take_file(path, time.time_ns())  # before reading, to notice a later change
    config, was_young = _stored(store, path)
    if config is not None:
        if was_young and fact[0] == "stat":
            _store(store, path, config, fact)
        return config
    if fact[0] == "absent" and is_absent(path):
        config = Config()
    else:
        from nvct.container import cold_process

        config = Config.from_dict(cold_process.run(cold, ["config", path], env))
    _store(store, path, config, fact)
    return config


def is_absent(path: str) -> bool:
    """Report whether a file is missing or not accessible; False for all other errors."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return True
    except OSError:
        return False
    return False


def _stored(store: Store, path: str) -> tuple[Config | None, bool]:
    """Return the stored configuration if it is current, and whether its fingerprint is a hash.

    A damaged file counts as missing and is written again.
    """
    document = store.read_json(paths.CONFIG_CACHE)
    if document is None or document.get("nvct-config") != FORMAT or document.get("path") != path:
        return None, False
    facts, values = document.get("facts"), document.get("config")
    if not (isinstance(facts, list) and facts and isinstance(values, dict)):
        return None, False
    if fingerprints.broken(facts):  # type: ignore[arg-type]  # `broken` checks their form
        return None, False
    try:
        return Config.from_dict(values), facts[0][0] == "hash"  # type: ignore[index]  # a fingerprint
    except ConfigError:
        return None, False


def _store(store: Store, path: str, config: Config, fact: fingerprints.Fingerprint) -> None:
    """Store the compiled configuration; launcher.conf only if the file's times are reliable."""
    document = {"nvct-config": FORMAT, "path": path, "facts": [fact], "config": config.to_dict()}
    store.write_json(paths.CONFIG_CACHE, document)
    if fact[0] in ("stat", "absent"):
        is_rootless = posix.stat("/").st_uid != posix.geteuid()
        conf = launcher_conf(config, path, fact, is_rootless=is_rootless)
        store.write(paths.LAUNCHER_CONF, conf.encode(*AS_BYTES))


def launcher_conf(
    config: Config, path: str, fact: fingerprints.Fingerprint, *, is_rootless: bool = False
) -> str:
    """Return the content of launcher.conf. Without entries, Python decides about every container.

    It has no entries if a debug log is configured, if a rootless engine's devices are checked
    (no control group refuses a node there, and a mount of one can have any name), if a name does
    not fit in a line, or if nothing is left of a word: words are cut at characters that JSON may
    escape, so that an escape cannot hide them.
    """
    is_checked = bool(config.policy) and config.engine_devices == CHECKED
    words = [*LAUNCHER_WORDS, *config.swarm_resource, *config.annotation_prefixes]
    words_to_search = [max(_split_at_escapes(word), key=len) for word in words]
    names = "".join([path, *config.runtimes])
    if (
        config.debug not in ("", "/dev/null")
        or "" in words_to_search
        or (is_checked and is_rootless)
        or "\n" in names
        or "\t" in names
    ):
        return "nvct-launcher 2\nend\n"
    signature = fact[2]
    stamp = " ".join([str(n) for n in signature]) if isinstance(signature, list) else "absent"
    lines = ["nvct-launcher 2", f"config\t{path}\t{stamp}"]
    lines += [f"runtime\t{name}" for name in config.runtimes]
    lines += [f"word\t{word}" for word in words_to_search]
    if is_checked:
        lines += ["host\tchecked", *[f"word\t{word}" for word in ENGINE_DEVICES]]
    return "\n".join([*lines, "end", ""])


def _split_at_escapes(word: str) -> list[str]:
    parts = [""]
    for char in word:
        if char in '"\\/<>&\n\t' or not " " <= char <= "~":
            parts.append("")
        else:
            parts[-1] += char
    return parts
