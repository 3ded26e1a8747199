# SPDX-License-Identifier: Apache-2.0
"""The CDI spec for engines: which files it can replace, and its removal.

Cold. A spec is replaced or removed only if it describes this host's NVIDIA devices: made by nvct,
or by another generator for the same kind. Any other file of that name is not changed.
"""

from __future__ import annotations

import os
import re
import stat
import time

from nvct.cdi.make import provenance
from nvct.cdi.make.generate import ALLOW_BUILDS
from nvct.cdi.read import load
from nvct.compile import live_host
from nvct.compile.publish import WITH_HOOKS
from nvct.config.model import Config, path_from
from nvct.container.plan import fingerprints
from nvct.errors import DocumentError, HostError, UsageError
from nvct.host.driver.libraries import machine_directories
from nvct.host.roots import join
from nvct.linux.files import read_bytes
from nvct.paths import GPU_KIND

# The start of a spec whose generator was killed, or found the disk full, while it wrote in place.
BEGINS = re.compile(
    rb'\s*\Z|.*?^[\s{]*["\']?kind["\']?:\s*["\']?nvidia\.com/gpu\b', re.MULTILINE | re.DOTALL
)
CHOICES = {
    "device-id": ("NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", "all"),
    "no-hooks": ("NVIDIA_CTK_CDI_GENERATE_NO_HOOKS", WITH_HOOKS),
    "allow-builds": ("NVIDIA_CTK_CDI_GENERATE_ALLOW_BUILDS", "false"),
}
"""The variable and the default of each option that stays in force until it is set again."""
HEAD = 1 << 16  # bytes
NODES = ("nvidia", "nvidia-caps/")
"""How paths of nodes begin, below /dev."""
REFRESH_ENV = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
"""The variables that nvidia-cdi-refresh.service sets for `nvct publish`."""


def choices_of_service(path: str) -> dict[str, str]:
    """Return the values of CHOICES that the service's variables set, by option.

    So a call by hand, or by doctor --fix, publishes the same spec as the service. Raises HostError
    if the file exists and cannot be read.
    """
    values = variables_of_service(path)
    choices = {option: values.get(variable, "") for option, (variable, _) in CHOICES.items()}
    return {option: value for option, value in choices.items() if value}


def variables_of_service(path: str) -> dict[str, str]:
    """Return the variables in the service's file, {} if absent; HostError if unreadable."""
    try:
        lines = read_bytes(path, HEAD).decode("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from error
    pairs = (line.strip().partition("=") for line in lines)
    return {name: value.strip("\"' ") for name, _, value in pairs}


def options_of_file(path: str) -> dict[str, str]:
    """Return by name the options with which nvct made a specification; {} for other files."""
    try:
        spec = load.load_file(path)
        origin = provenance.read(spec, path)
    except (DocumentError, OSError):
        return {}
    options = {
        "device-id": origin.only if origin else "",
        "no-hooks": origin.no_hooks if origin else "",
        "allow-builds": spec.get("annotations", {}).get(ALLOW_BUILDS, "") if origin else "",
    }
    return {name: value for name, value in options.items() if value}


def watched_fingerprints(settings: Config) -> list[fingerprints.Fingerprint]:
    """Return fingerprints that change with the driver, its nodes, MIG devices and config.toml.

    They cover what the units watch and a specification depends on. A path unit loses changes while
    its service runs (systemd 252 and 259 did), so `nvct publish` takes them before and after.
    """
    roots, now = live_host.roots_of(settings), time.time_ns()
    files = [settings.path or path_from(os.environ), f"{roots.etc}/ld.so.cache"]
    folders = ("/usr/bin", *machine_directories(os.uname().machine))
    files += [join(roots.driver_root, folder) for folder in folders]
    taken = [fingerprints.take_file(path, now) for path in files]
    taken += [fingerprints.take("prefix", f"{roots.dev}/{name}") for name in NODES]
    return [*taken, fingerprints.take("text", f"{roots.proc}/driver/nvidia/version")]


def check_replaceable(path: str) -> None:
    """Raise HostError if a file exists that is not a spec of this host's NVIDIA devices."""
    if not os.path.lexists(path):
        return
    try:
        spec = load.load_file(path)
    except DocumentError as error:
        if _is_partial_spec(path):
            return
        raise _refusal(path, "not a CDI specification") from error
    if spec["kind"] != GPU_KIND and provenance.read(spec, path) is None:
        raise _refusal(path, f"another generator's specification of {spec['kind']}")


def output_path(output: str) -> str:
    """Return the path of a spec, with .yaml added if engines do not read files of its extension.

    Raises UsageError.
    """
    if not os.path.basename(output) or os.path.isdir(output):
        raise UsageError(
            f"{output!r} does not name a file", hint="such as /var/run/cdi/nvidia.yaml"
        )
    ending = os.path.splitext(output)[1]
    return output if ending in load.EXTENSIONS else f"{output}.yaml"


def _is_partial_spec(path: str) -> bool:
    """Return whether a malformed file is empty or the start of a spec of these devices."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return is_file and BEGINS.match(os.read(fd, HEAD)) is not None
    finally:
        os.close(fd)


def _refusal(path: str, description: str) -> HostError:
    return HostError(
        f"{path} is not replaced: it is {description}",
        hint="move it away, or set NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
    )


def is_of_another_generator(path: str) -> bool:
    """Return whether a file is a spec of this host's GPUs that another generator wrote."""
    try:
        spec = load.load_file(path)
    except (DocumentError, OSError):
        return False
    return spec["kind"] == GPU_KIND and provenance.read(spec, path) is None


def withdraw(path: str) -> bool:
    """Remove the spec; return whether it existed. HostError as `check_replaceable`."""
    check_replaceable(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error
    return True
