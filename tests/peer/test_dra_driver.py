# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's DRA driver leaves on a cluster (recorded/dra-driver.json), and what nvct makes of it."""

import json

from nvct.agent.device_plugin.settings import DRA_VENDOR
from nvct.agent.dra import specs
from nvct.agent.dra.devices import DRIVER
from nvct.agent.nvml.host_verbs import CLAIM_CLASS, device_name
from tests.peer.__main__ import DRA_DRIVER_FACTS, REPOSITORY

FACTS = json.loads(DRA_DRIVER_FACTS.read_text(encoding="utf-8"))
CDI = "/var/run/cdi"


def section() -> str:
    page = (REPOSITORY / "docs/migrate.md").read_text(encoding="utf-8")
    return page.partition("### From the DRA driver\n")[2].partition("\n### ")[0]


def test_both_name_the_driver_and_the_devices_of_claims_alike() -> None:
    assert FACTS["resourceslice"]["driver"] == DRIVER
    assert FACTS["cdi"]["kind"] == f"{DRA_VENDOR}/{CLAIM_CLASS}"
    assert FACTS["cdi"]["device"] == device_name("UID", "gpu-4", is_admin=False)


def test_the_page_names_the_file_of_claims_and_what_stays() -> None:
    (checkpoint,) = (path for path in FACTS["files"] if path.endswith("checkpoint.json"))
    assert checkpoint in section()
    for crd in FACTS["crds"]:
        assert crd in section()


def test_nvct_knows_each_file_that_another_driver_would_name_alike() -> None:
    (path,) = (path for path in FACTS["files"] if path.startswith(CDI))
    assert specs.theirs(CDI, "UID") == path
