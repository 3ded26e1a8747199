# SPDX-License-Identifier: Apache-2.0
"""What a container asks for besides its GPUs: features of the host, IMEX channels, MIG.

Hot; loaded only where a container may ask for any. What a mode and privilege have to do with it
is nvidia-container-toolkit v1.20's.
"""

from __future__ import annotations

from nvct.container.request.model import FEATURES, IMEX, JETPACK, MIG_CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.config.model import Config
    from nvct.container.request.model import Env, Request


def add(
    request: Request,
    variables: Env,
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    *,
    privileged: bool,
) -> None:
    """Add to a request what the variables and the mounts of a container ask for besides GPUs.

    Raises:
        RequestError: something of it cannot be understood.
        NotPermittedError: only a privileged container may have it.
    """
    extras = request.extras
    for name, variable in FEATURES.items():
        setattr(extras, name, variables.get(variable) == "enabled")
    if not config.ignore_imex and (IMEX in variables or config.accept_volume_mounts):
        from nvct.container.request.imex import channels  # rarely asked for

        extras.imex = channels(variables, mounts, config, request.notes, privileged=privileged)
        # The incumbent makes the host's nodes, in this mode and under these conditions.
        may = config.cli_load_kmods and not config.disable_imex_channel_creation
        extras.imex_unmade = may and request.mode == "legacy"
    extras.csv_all = variables.get(JETPACK) == "csv-mounts=all"
    for name, variable in MIG_CAPABILITIES.items():
        if not variables.get(variable):
            continue
        if request.mode != "legacy" and not privileged:
            # The incumbent reads it in legacy mode only, where it refuses the container.
            request.notes.append(f"{variable} is ignored: the container is unprivileged")
            continue
        from nvct.container.request.capabilities import mig_capability  # rarely asked for

        setattr(extras, name, mig_capability(variables, variable, privileged=privileged))
