# SPDX-License-Identifier: Apache-2.0
"""`nvct-nri`, the NRI plugin that container engines ask about each container of a pod."""

from __future__ import annotations

import sys
from typing import NoReturn

from nvct.errors import line, unexpected


def start() -> NoReturn:
    """Run `nvct-nri`; say what to install if the extra with protobuf is missing."""
    try:
        from nvct.nri.main import main
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{line('nvct-nri', unexpected(error))}\n")
        sys.exit(1)
    main()
