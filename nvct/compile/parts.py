# SPDX-License-Identifier: Apache-2.0
"""The input of nvct's own plan: the edits of every container, and the additions per capability.

A create combines the parts that NVIDIA_DRIVER_CAPABILITIES requests without a new compilation.
Two parts may have the same entry: a part includes the dependencies of its libraries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import cast

from nvct.cdi.make import edits, generate, hooks, injection
from nvct.cdi.make.generate import Job, Options
from nvct.cdi.make.injection import Injection
from nvct.cdi.types import ContainerEdits
from nvct.compile.plans import Own, Part
from nvct.container.plan import model
from nvct.container.plan.model import merge
from nvct.container.rootfs.libraries import is_library, order
from nvct.host import capabilities
from nvct.host.model import DriverFile, Inventory


def in_parts(inventory: Inventory, options: Options) -> Own:
    """Return the edits by capability: key "" has those of every container.

    Each other key has the edits that its capability adds.

    Raises:
        UsageError, UnknownDeviceError, HostError: as `generate`.
    """
    job = generate.prepare(inventory, options)
    return Own(
        kind=job.kind,
        common=_parts(job, injection.for_every_container(inventory), is_common=True),
        devices=[
            (device.names, _parts(job, _joined(device.injections), is_common=False))
            for device in job.devices
        ],
        hook=hooks.program(options.hook_path),
    )


def _joined(injections: tuple[Injection, ...]) -> Injection:
    nodes, files, links = zip(*injections, strict=True)
    return Injection(
        tuple(dict.fromkeys(chain(*nodes))),
        tuple(dict.fromkeys(chain(*files))),
        tuple(dict.fromkeys(chain(*links))),
    )


def _parts(job: Job, content: Injection, *, is_common: bool) -> dict[str, Part]:
    """Return the parts of the capabilities that have any entry; "" is always included."""
    nodes = capabilities.nodes_by_capability(content.nodes)
    files = capabilities.files_by_capability(content.files)
    default_files = capabilities.files_of(content.files, capabilities.DEFAULT)
    all_files = capabilities.files_of(content.files, capabilities.NAMES)
    files["compat32"] = tuple(file for file in all_files if file not in default_files)
    shares = {name: Injection(nodes[name], files[name]) for name in nodes}
    shares[""] = shares[""]._replace(links=content.links)
    shares = {name: share for name, share in shares.items() if any(share) or not name}
    works = {name: _work(job, name, share, is_common=is_common) for name, share in shares.items()}
    merged = merge(list(works.values()))
    return {
        name: Part(
            edits=_edits(job, name, share, is_common=is_common),
            work=works[name] if any(works[name].values()) else None,
            cache=linker_entries(share.files, merged),
        )
        for name, share in shares.items()
    }


def _work(job: Job, name: str, share: Injection, *, is_common: bool) -> model.Work:
    if is_common and not name:
        return hooks.common_work(job.inventory, job.hooks, share.files)
    return hooks.work_of(job.hooks, share.files, share.links)


def _edits(job: Job, name: str, share: Injection, *, is_common: bool) -> ContainerEdits:
    env = []
    if is_common:
        env = [*generate.libcuda_env(job, share.files), *([] if name else [generate.VOID_ENV])]
    return cast("ContainerEdits", edits.tidy(generate.edits(job, share, env=env), {}))


def linker_entries(files: Iterable[DriverFile], work: model.Work) -> list[list[str]]:
    """Return (machine, name, container path) of each library that is mounted by itself.

    By these entries of ld.so.cache a container's dynamic linker finds the driver's libraries. The
    names are those that the hook computes in a container (nvct.container.rootfs.libraries): the
    SONAME, and `libX.so` if `work` makes such a link. Computed in advance, they save a read of the
    mounted files.
    """
    links: dict[str, dict[str, str]] = {}
    for target, path in work["links"]:
        folder, name = os.path.split(path)
        links.setdefault(folder, {})[name] = target
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        folder, name = os.path.split(file.container_path)
        if not file.machine or folder not in work["folders"] or not is_library(name):
            continue
        soname = os.path.basename(file.soname) or name
        beside = _leading_to(name, links.get(folder, {}))
        key = file.machine, folder, soname
        if soname == name or soname in beside:
            names[key] = soname
        elif key not in names or order(names[key]) <= order(name):
            names[key] = name
        for link in beside:
            if link.endswith(".so") and soname.startswith(link):
                names[file.machine, folder, link] = link
    return [
        [machine, name, f"{folder}/{file}"]
        for (machine, folder, name), file in sorted(names.items())
    ]


def _leading_to(name: str, links: dict[str, str]) -> list[str]:
    leading: list[str] = []
    queue = [name]
    while queue:
        target = queue.pop()
        new = [link for link, text in links.items() if text == target and link not in leading]
        queue += new
        leading += new
    return leading
