# SPDX-License-Identifier: Apache-2.0
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nvct.oci import argv
from tests.support.processes import captured
from tests.unit.oci.argv_cases import CASES, Case

READ = ("command", "bundle", "config", "log", "log_format", "debug", "version", "help", "sure")
TRIED = {"runc": "1.1.5", "crun": "1.8.1"}
NO_BUNDLE = {
    "runc": re.compile(
        r'(?:failed: |msg=")(?:chdir (.*?): no such file|JSON specification file config)'
    ),
    "crun": re.compile(
        r"(?:realpath|chdir) `(.*?)` failed: No such|error loading|cannot read the"
    ),
}
"""What each says when there is no such bundle, or no config.json in the working directory."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command_line_is_parsed_as_in_the_table(case: Case) -> None:
    invocation = argv.parse(list(case.args))
    assert {key: getattr(invocation, key) for key in READ} == {
        key: getattr(case, key) for key in READ
    }
    assert invocation.creates is case.creates


def looked_for(runtime: str, case: Case, folder: Path) -> str | None:
    result = captured(
        [runtime, *case.args],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(folder)},
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    assert result.returncode != 0
    log = folder / case.log.removeprefix("file:")
    bundle_path = NO_BUNDLE[runtime].search(
        result.stderr + (log.read_text() if log.is_file() else "")
    )
    return None if bundle_path is None else bundle_path[1] or ""


@pytest.mark.parametrize("runtime", sorted(TRIED))
def test_the_runtimes_search_the_bundle_as_in_the_table(runtime: str, tmp_path: Path) -> None:
    program = shutil.which(runtime)
    if program is None:
        pytest.skip(f"needs {runtime}")
    version = captured([program, "--version"], check=True)
    if TRIED[runtime] not in version.stdout.splitlines()[0]:
        pytest.skip(f"the table tells of {runtime} {TRIED[runtime]}")
    wrong = {}
    for number, case in enumerate(case for case in CASES if case.creates):
        folder = tmp_path / str(number)
        folder.mkdir()
        bundle_path = looked_for(runtime, case, folder)
        if bundle_path != getattr(case, runtime):
            wrong[str(case)] = bundle_path
    assert wrong == {}
