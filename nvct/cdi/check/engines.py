# SPDX-License-Identifier: Apache-2.0
"""The highest CDI version that each release of each engine reads.

Cold side. An engine reads specs with the CDI library that it is built with. The library refuses a
file with a cdiVersion or a member that it does not support; then a container gets no device of
that file. Each row is the first release with a new value. Its source is the version of
tags.cncf.io/container-device-interface, or of its earlier name, in the release's go.mod (Docker:
vendor.mod). The versions that a library supports are in its specs-go/config.go.
"""

from __future__ import annotations

import re

from nvct.cdi import versions
from nvct.cdi.types import Spec
from nvct.errors import UsageError

# Engine -> (its name, rows of: release, highest CDI version, version of the CDI library).
ENGINES: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "docker": ("Docker", (
        ("25.0.0", "0.6.0", "0.6.2"),
        ("25.0.17", "0.8.0", "0.8.1"),
        ("26.0.0", "0.6.0", "0.6.2"),
        ("26.1.0", "0.7.0", "0.7.1"),
        ("27.4.0", "0.8.0", "0.8.0"),
        ("28.1.0", "1.0.0", "1.0.1"),
        ("29.2.0", "1.1.0", "1.1.0"),
    )),
    "containerd": ("containerd", (
        ("1.7.0", "0.5.0", "0.5.4"),
        ("1.7.12", "0.6.0", "0.6.1"),
        ("1.7.16", "0.7.0", "0.7.2"),
        ("1.7.27", "0.8.0", "0.8.1"),
        ("2.0.0", "0.8.0", "0.8.0"),
        ("2.0.5", "1.0.0", "1.0.0"),
        ("2.2.1", "1.1.0", "1.1.0"),
    )),
    "cri-o": ("CRI-O", (
        ("1.24.0", "0.3.0", "0.3.2"),
        ("1.25.0", "0.5.0", "0.5.0"),
        ("1.28.0", "0.6.0", "0.6.0"),
        ("1.30.0", "0.7.0", "0.7.2"),
        ("1.31.0", "0.8.0", "0.8.0"),
        ("1.33.0", "1.0.0", "1.0.1"),
        ("1.35.0", "1.1.0", "1.1.0"),
    )),
    "podman": ("Podman", (
        ("4.1.0", "0.4.0", "0.4.0"),
        ("4.3.0", "0.5.0", "0.5.2"),
        ("4.7.0", "0.6.0", "0.6.1"),
        ("5.1.0", "0.7.0", "0.7.2"),
        ("5.2.0", "0.8.0", "0.8.0"),
        ("5.5.0", "1.0.0", "1.0.1"),
        ("6.0.0", "1.1.0", "1.1.0"),
    )),
    "buildah": ("Buildah", (
        ("1.36.0", "0.7.0", "0.7.2"),  # in earlier go.mod files, an indirect dependency
        ("1.37.0", "0.8.0", "0.8.0"),
        ("1.40.0", "1.0.0", "1.0.1"),
        ("1.44.0", "1.1.0", "1.1.0"),
    )),
}  # fmt: skip

_RELEASE = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})(?:[-+~].*)?")


def parse(word: str) -> tuple[str, str]:
    """Return engine and release of a word such as docker=26.0; UsageError if it is malformed."""
    engine, equals, release = word.partition("=")
    engine = {"crio": "cri-o", "moby": "docker"}.get(engine.lower(), engine.lower())
    if engine not in ENGINES:
        raise UsageError(
            f"engine {engine!r} is unknown", hint=f"it is one of {', '.join(ENGINES)}"
        )
    if not equals or not _RELEASE.fullmatch(release):
        raise UsageError(
            f"engine {word!r} has no release", hint=f"write {engine}=RELEASE, e.g. docker=26.0"
        )
    return engine, release


def highest(engine: str, release: str) -> str:
    """Return the highest CDI version that a release of an engine reads, "" if it reads none."""
    highest_version = ""
    for since, version, _library in ENGINES[engine][1]:
        if _numbers(since) <= _numbers(release):
            highest_version = version
    return highest_version


def refusal(spec: Spec, engine: str, release: str) -> str:
    """Return a sentence with the reason that an engine's release refuses a spec; "" if none."""
    name = ENGINES[engine][0]
    version = highest(engine, release)
    if not version:
        return f"{name} {release} cannot use it: it does not support CDI"
    reason = _reason(spec, version)
    return f"{name} {release} will refuse it: {reason}" if reason else ""


def refusals(spec: Spec) -> list[str]:
    """Return a sentence for each engine that has releases which refuse a spec."""
    return [
        f"{name} {' and '.join(ranges)} will refuse it: {reason}"
        for name, rows in ENGINES.values()
        for reason, ranges in _by_reason(spec, rows).items()
    ]


def is_ignored(path: str) -> bool:
    """Return whether engines ignore a file because of its name: they do not read .yml."""
    return path.endswith(".yml")


def _by_reason(spec: Spec, rows: tuple[tuple[str, str, str], ...]) -> dict[str, list[str]]:
    """Return, for each reason to refuse a spec, the ranges of releases."""
    ranges: dict[str, list[str]] = {}
    reasons = [_reason(spec, version) for _since, version, _library in rows]
    start = 0
    for row, reason in enumerate(reasons):
        if row + 1 < len(rows) and reasons[row + 1] == reason:
            continue
        if reason:
            after = rows[row + 1][0] if row + 1 < len(rows) else ""
            ranges.setdefault(reason, []).append(_range(rows[start][0] if start else "", after))
        start = row + 1
    return ranges


def _range(since: str, before: str) -> str:
    if since and before:
        return f"from {since} before {before}"
    if since:
        return f"from {since} on"
    return f"before {before}" if before else "in every release"


def _reason(spec: Spec, version: str) -> str:
    """Return the reason that a library with this highest version refuses a spec, or ""."""
    needed, reason = versions.minimum(spec)
    declared = spec["cdiVersion"].removeprefix("v")
    if versions.is_older(version, declared):
        if declared == needed:
            return f"{needed} because of {reason}"
        return f"it declares {declared}, though it needs only {needed}"
    for edits in versions.all_edits(spec):
        rdt = edits.get("intelRdt", {})
        if version == "1.1.0" and ("enableCMT" in rdt or "enableMBM" in rdt):
            return "CDI 1.1.0 has no enableCMT and enableMBM"
        if any(node.get("permissions") == "none" for node in edits.get("deviceNodes", ())):
            return 'permissions are "none", which the CDI library up to 1.1.0 does not support'
    return ""


def _numbers(release: str) -> tuple[int, ...]:
    """Return a release as a sort key: 26.1 is 26.1.0, a distribution's suffix is ignored."""
    matched = _RELEASE.fullmatch(release)
    numbers = [int(part) for part in matched[1].split(".")] if matched else []
    return tuple([*numbers, 0, 0, 0, 0][:4])
