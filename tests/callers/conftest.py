# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of callers: those of the engines and of the simulated node."""

from tests.engines.conftest import machine_of
from tests.engines.releases import FULL
from tests.integration.conftest import simulated

__all__ = ["machine_of", "simulated"]

IN_FULL = ("apptainer", "buildkit", "cri_dockerd", "docker_build", "incus", "nerdctl", "quadlet")
"""Callers that are built, of a release that still changes, or slow to set up."""
collect_ignore = [] if FULL else [f"test_{name}.py" for name in IN_FULL]
