# SPDX-License-Identifier: Apache-2.0
"""The unit that keeps the specification: what its text alone decides."""

from __future__ import annotations

import configparser
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "packaging/systemd"


def service() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation has it
    parser.read(FOLDER / "nvidia-cdi-refresh.service", encoding="utf-8")
    return parser["Service"]


def test_what_fails_for_good_is_not_tried_without_end_at_a_nodes_cost() -> None:
    # RestartSteps= came with systemd 254: Debian 12's and RHEL 9's wait RestartSec= each time.
    assert int(service()["RestartSec"]) >= 30


def test_a_setting_that_means_nothing_is_not_tried_again() -> None:
    assert service()["RestartPreventExitStatus"] == "2"
