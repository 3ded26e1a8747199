# SPDX-License-Identifier: Apache-2.0
"""A cluster for programs that are no tests: `make demo-kubernetes`, the measurements."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import rootfs
from tests.engines import conftest as engines
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes import programs
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import machine
from tests.support import program_image

RELEASE = "trixie"


def needed() -> None:
    """Skip a test where no cluster with the image can be had."""
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    try:
        programs.folders()
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    program_image.archive()  # or skip


class Folder:
    """Makes temporary folders as pytest's factory does."""

    def __init__(self, path: Path) -> None:
        """Make them in a folder."""
        self._path = path

    def mktemp(self, name: str) -> Path:
        """Return a new folder."""
        made = self._path / name
        made.mkdir()
        return made


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Yield a ready cluster of one simulated node; it vanishes at the end.

    Raises:
        ContainerNotPossibleError: it does not start, or its programs cannot be built here.
    """
    with tempfile.TemporaryDirectory(prefix="nvct-") as folder:
        factory: object = Folder(Path(folder))
        programs, node, work = engines.prepare(RELEASE, factory)  # type: ignore[arg-type]
        with machine(lambda box: SupervisedContainerd(box, 2), programs, node, work) as engine:
            yield Cluster(engine)
