# SPDX-License-Identifier: Apache-2.0
"""CRI-O for the tests: no release of Debian has it, so it is built from its Go module.

`python -m tests.engines.crio_program` builds it and prints its folder (`make crio`): two to three
minutes of CPU once. No C library is needed: without cgo it ignores seccomp profiles. conmon and
runc are Debian's.
"""

import shutil
import sys
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from tests.support.go_programs import Program, build

CRIO = Program(
    name="crio",
    source=Path(__file__).parent / "crio",
    module="github.com/cri-o/cri-o",
    package="github.com/cri-o/cri-o/cmd/crio",
    tags=("containers_image_openpgp", "containers_image_ostree_stub", "exclude_graphdriver_btrfs"),
    c_programs={"pinns": "pinns/src"},  # makes the namespaces of pods
    prefix="crio-",
)


def folder() -> Path:
    """Return the folder with crio and pinns: of the crio on PATH, else of the built one.

    Raises:
        ContainerNotPossibleError: there is no crio.
    """
    installed = shutil.which(CRIO.name)
    if installed is not None:
        return Path(installed).parent
    if not CRIO.folder().is_dir():
        raise ContainerNotPossibleError("CRI-O is not built, nor on PATH", hint="make crio")
    return CRIO.folder()


if __name__ == "__main__":
    try:
        print(build(CRIO))
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
