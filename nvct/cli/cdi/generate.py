# SPDX-License-Identifier: Apache-2.0
"""Call and output of `nvidia-ctk cdi generate`. Contract: imports no command line library."""

from __future__ import annotations

import os
import sys
from typing import Any

from nvct.cli.context import say, settings_in_force
from nvct.errors import HostError


def write(warn: Any = say, **values: Any) -> None:  # noqa: ANN401  each option has its own type
    """Discover this host and write its CDI specification; `warn` takes each line for stderr.

    NvctError if an option is wrong, the host has no driver, or a file cannot be written.
    """
    from nvct.compile.publish import Request, publish

    settings = settings_in_force(
        values.pop("config", None), values.get("driver_root"), values.get("dev_root")
    )
    request = Request(**values, xdg_data_dirs=os.environ.get("XDG_DATA_DIRS", ""))
    documents = publish(request, settings, warn)
    try:
        for document in documents:
            sys.stdout.write(document)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(f"the spec cannot be written to stdout: {error.strerror}") from error
