# SPDX-License-Identifier: Apache-2.0
"""The input of nvct's own plan: the edits of every container, and the additions per capability.

A create combines the parts that NVIDIA_DRIVER_CAPABILITIES requests without a new compilation.
Two parts may have the same entry: a part includes the dependencies of its libraries.
"""

from __future__ import annotations

from itertools import chain
from typing import cast

from nvct.cdi.make import capabilities, generate, hooks, injection, transform
from nvct.cdi.make.injection import Injection
from nvct.compile import linker_cache
from nvct.compile.plans import Own, Part
from nvct.container.plan.model import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.make.generate import Job, Options
    from nvct.cdi.types import ContainerEdits
    from nvct.container.plan.model import Work
    from nvct.host.model import Inventory


def in_parts(inventory: Inventory, options: Options) -> Own:
    """Return the edits by capability: key "" has those of every container.

    Each other key has the edits that its capability adds.

    Raises:
        UsageError, UnknownDeviceError, HostError: as `generate`.
    """
    job = generate.prepare(inventory, options)
    return Own(
        kind=job.kind,
        common=_parts(job, injection.common(inventory), is_common=True),
        devices=[
            (device.names, _parts(job, _joined(device.injections), is_common=False))
            for device in job.devices
        ],
        hook=hooks.program(options.hook_path),
    )


def _joined(injections: tuple[Injection, ...]) -> Injection:
    """Return one injection with the entries of several, each once."""
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
            cache=linker_cache.entries(share.files, merged),
        )
        for name, share in shares.items()
    }


def _work(job: Job, name: str, share: Injection, *, is_common: bool) -> Work:
    if is_common and not name:
        return hooks.common_work(job.inventory, job.hooks, share.files)
    return hooks.work_of(job.hooks, share.files, share.links)


def _edits(job: Job, name: str, share: Injection, *, is_common: bool) -> ContainerEdits:
    env = []
    if is_common:
        env = [*generate.libcuda_env(job, share.files), *([] if name else [generate.VOID_ENV])]
    return cast("ContainerEdits", transform.tidy(generate.edits(job, share, env=env), {}))
