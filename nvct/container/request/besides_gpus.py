# SPDX-License-Identifier: Apache-2.0
"""Requests besides GPUs: host features, IMEX channels, MIG capabilities.

Hot; loaded only if a container may request any. The rules about mode and privilege are those of
nvidia-container-toolkit v1.20.
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
    """Add the extras that the variables and mounts of a container ask for to its request.

    Raises:
        RequestError: a value is malformed.
        NotPermittedError: an extra requires a privileged container.
    """
    extras = request.extras
    for name, variable in FEATURES.items():
        setattr(extras, name, variables.get(variable) == "enabled")
    if not config.ignore_imex and (IMEX in variables or config.accept_volume_mounts):
        from nvct.container.request.imex import channels  # rarely requested

        extras.imex = channels(variables, mounts, config, request.notes, privileged=privileged)
        # Under these conditions the incumbent creates the nodes of the host.
        creates = config.cli_load_kmods and not config.disable_imex_channel_creation
        extras.imex_unmade = creates and request.mode == "legacy"
    extras.csv_all = variables.get(JETPACK) == "csv-mounts=all"
    for name, variable in MIG_CAPABILITIES.items():
        if not variables.get(variable):
            continue
        if request.mode != "legacy" and not privileged:
            # The incumbent reads it only in legacy mode, and refuses the container.
            request.notes.append(f"{variable} is ignored: the container is unprivileged")
            continue
        from nvct.container.request.capabilities import mig_capability  # rarely requested

        setattr(extras, name, mig_capability(variables, variable, privileged=privileged))
