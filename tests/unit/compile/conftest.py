# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.support.shim_lab import Lab


@pytest.fixture
def node(lab: Lab) -> Lab:
    lab.keys["nvct"] |= {"layout": "farm", "farm-dir": f"{lab.home}/farm"}
    lab.configure()
    lab.driver()
    return lab
