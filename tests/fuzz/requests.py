# SPDX-License-Identifier: Apache-2.0
"""What a request may at most be, said a second time and without any of nvct's own grammar.

The oracle "nothing widens a request": devices are words that stand in a place that may ask;
"all" comes from the word all, or from an image of the kind that gets all without asking.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from nvct.config.model import DRIVER_CAPABILITIES, Config
from nvct.container.request import requirements
from nvct.container.request.model import Request
from nvct.container.request.resolve import resolve_request
from nvct.container.request.visible_devices import BLANK, plain_bus_id

SWARM = "DOCKER_RESOURCE_GPU"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
PREFIX = "cdi.k8s.io/"
FOLDER = "/var/run/nvidia-container-devices/"
JIT = "runtime.nvidia.com/gpu="
FACTS = {"cuda": "12.4", "driver": "550.54.15"}
SEPARATOR = b"\x1e"
MODES = ("auto", "jit-cdi", "cdi", "csv", "legacy")
UUID = "8a56d3b8-0f8c-4a6e-9e5f-0123456789ab"
SEEDS = (
    ("0", "eNVIDIA_VISIBLE_DEVICES=0,1,GPU-" + UUID, "eNVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ("0", "eNVIDIA_VISIBLE_DEVICES=all", "eNVIDIA_REQUIRE_CUDA=cuda>=12.0 brand=tesla,driver>=470"),
    ("0", "eNVIDIA_VISIBLE_DEVICES=none"),
    ("0", "eNVIDIA_VISIBLE_DEVICES=3:1, MIG-" + UUID + ",0000:18:00.0"),
    ("1", "eCUDA_VERSION=10.1.243", "cCAP_SYS_ADMIN"),
    ("2", "acdi.k8s.io/x=nvidia.com/gpu=0,nvidia.com/gpu=1", "eNVIDIA_VISIBLE_DEVICES=all"),
    ("2", "acdi.k8s.io/a=nvidia.com/gpu=0", "acdi.k8s.io/b=acme.org/net=eth0", "other=all"),
    ("5", "m/var/run/nvidia-container-devices/0", "m/var/run/nvidia-container-devices/imex/1"),
    ("5", "m/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/1", "m/data"),
    ("9", "eDOCKER_RESOURCE_GPU=0", "eNVIDIA_VISIBLE_DEVICES=all"),
    ("0", "eNVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0", "eNVIDIA_IMEX_CHANNELS=0,channel2"),
    ("4", "eNVIDIA_VISIBLE_DEVICES=0", "cCAP_SYS_ADMIN", "eNVIDIA_MIG_CONFIG_DEVICES=all"),
    ("0", "eNVIDIA_VISIBLE_DEVICES=1", "eNVIDIA_GDS=enabled", "eNVIDIA_REQUIRE_JETPACK=csv-mounts=all"),
)  # fmt: skip
WORDS = (
    "all", "none", "void", "0", "1", "0:1", ",", "=", "e", "NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=",
    "NVIDIA_REQUIRE_CUDA=", "NVIDIA_REQUIRE_", "DOCKER_RESOURCE_GPU=", "NVIDIA_DRIVER_CAPABILITIES=",
    "compute", "video", "\x1ee", "\x1ea", "\x1em", "\x1ecCAP_SYS_ADMIN", "cdi.k8s.io/", FOLDER, "cdi/",
    "imex/", "nvidia.com/gpu=", JIT, "GPU-", "MIG-", "MIG-GPU-", UUID, "/0/0", "0000:18:00.0", "../",
    "cuda>=", "driver", "<", "!=", "brand=", "arch", " ", ".", "99999999999", "NVIDIA_IMEX_CHANNELS=",
    "channel", "NVIDIA_GDS=", "enabled", "\u0663", "\t", "ALL", "All", "-1", "0x1", "0-3", "01", "+1",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Return requests, one part of a container each record: env, annotation, mount, capability."""
    return [SEPARATOR.join(part.encode() for part in parts) for parts in SEEDS]


def run(data: bytes) -> bool:
    """Resolve one request and hold it against the words that it was made of."""
    head, *parts = data.decode("utf-8", "surrogateescape").split(SEPARATOR.decode())
    config = configured(ord(head[0]) if head else 0)
    env = [part[1:] for part in parts if part[:1] == "e"]
    mounts = [
        {"destination": part[1:], "source": "/dev/null"} for part in parts if part[:1] == "m"
    ]
    annotations = dict(part[1:].partition("=")[::2] for part in parts if part[:1] == "a")
    bounding = [part[1:] for part in parts if part[:1] == "c"]
    request, _ = resolve_request(env, mounts, annotations, bounding, config)
    if request is None:
        return False
    check(request, env, mounts, annotations, bounding=bounding, config=config)
    requirements.check(request.requirements, FACTS)
    requirements.undecided(request.requirements, FACTS)
    return True


def configured(number: int) -> Config:
    """Return one of the configurations that decide who may ask."""
    return Config(
        mode=MODES[number % 5] if number & 64 else "auto",
        accept_volume_mounts=bool(number & 5),
        accept_envvar_when_unprivileged=not number & 2,
        swarm_resource=[SWARM] if number & 8 else [],
    )


def check(
    request: Request,
    env: Sequence[str],
    mounts: Sequence[Mapping[str, object]],
    annotations: Mapping[str, object],
    *,
    bounding: Sequence[str],
    config: Config,
) -> None:
    """Fail if a request is more than what the container's words allow."""
    variables = {e.partition("=")[0]: e.partition("=")[2] for e in env if "=" in e}
    by_env = [variables[n] for n in (*config.swarm_resource, VISIBLE) if n in variables]
    may_env = config.accept_envvar_when_unprivileged or "CAP_SYS_ADMIN" in bounding
    written = _words(by_env) if may_env else set()
    if config.mode in {"auto", "cdi"}:
        written |= _words(str(v) for k, v in annotations.items() if k.startswith(PREFIX))
    if config.accept_volume_mounts:
        written |= _mounted(mounts)
    old = bool(variables.get("CUDA_VERSION")) and "NVIDIA_REQUIRE_CUDA" not in variables
    if old and not by_env and may_env:
        written.add("all")
    written |= set(map(plain_bus_id, written))  # of leading zeros and case
    assert set(request.ids) <= written, f"{request.ids} of {sorted(written)}"
    assert len(set(request.ids)) == len(request.ids)
    assert request.none == (not request.ids)
    if "all" in request.ids:
        assert request.ids == ["all"]
    if request.none:
        assert "none" in written
    _check_more(request, variables, mounts, config, old=old)
    if not may_env:
        assert not request.source.startswith(("NVIDIA_", "CUDA_", SWARM))


def _words(values: Iterable[str]) -> set[str]:
    found = {word.strip(BLANK) for value in values for word in value.split(",")}
    return found | {word.removeprefix(JIT) for word in found}


def _mounted(mounts: Iterable[Mapping[str, object]]) -> set[str]:
    """Return what destinations can name: their last parts, whatever stands before."""
    found: set[str] = set()
    for mount in mounts:
        parts = [p for p in str(mount.get("destination")).split("/") if p not in {"", "."}]
        parts = _without_up(parts)
        for at in range(min(len(parts), 6)):  # the folder, cdi/ and imex/ have four
            tail = parts[at:]
            found.add("/".join(tail))
            if len(tail) >= 3:
                found.add(f"{tail[0]}/{tail[1]}={'/'.join(tail[2:])}")
    return found | {word.removeprefix(JIT) for word in found}


def _without_up(parts: list[str]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            del kept[-1:]
        else:
            kept.append(part)
    return kept


def _check_more(
    request: Request,
    variables: Mapping[str, str],
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    *,
    old: bool,
) -> None:
    """Hold what comes besides the GPUs against the words for it."""
    extras = request.extras
    for name in ("gds", "mofed", "gdrcopy", "nvswitch"):
        if getattr(extras, name):
            assert variables[f"NVIDIA_{name.upper()}"] == "enabled"
    for name in ("config", "monitor"):
        if getattr(extras, f"mig_{name}"):
            assert variables[f"NVIDIA_MIG_{name.upper()}_DEVICES"] == "all"
    numbers = set(re.findall("[0-9]+", variables.get("NVIDIA_IMEX_CHANNELS", "")))
    if config.accept_volume_mounts:
        numbers |= {n for m in mounts for n in re.findall("[0-9]+", str(m.get("destination")))}
    assert {str(n) for n in extras.imex} <= numbers
    given = request.capabilities
    if given is not None and not old:
        asked = variables.get("NVIDIA_DRIVER_CAPABILITIES")
        words = set() if asked is None else {w.strip(BLANK) for w in asked.split(",")} - {""}
        if "all" in words or (asked is None and request.mode != "legacy"):
            words |= set(DRIVER_CAPABILITIES)
        assert set(given) <= (words or {"compute", "utility"})
