# SPDX-License-Identifier: Apache-2.0
"""The good and bad specs in cdi/examples, and the schema beside them."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from nvct.cdi.make import store
from nvct.cdi.read import load, schema
from nvct.errors import CdiSpecError, line

CDI = Path(__file__).parents[4] / "cdi"
GOOD = sorted((CDI / "examples/good").iterdir())
BAD = sorted((CDI / "examples/bad").iterdir())

# What the error of loading it says; "" where only the schema refuses it.
REASONS = {
    "a-list.json": "is [], not a table",
    "annotation-key.yaml": "devices[0].annotations: annotation key '-slot' is malformed",
    "annotation-not-a-string.json": "annotations.a is {'b': 'c'}, not a string",
    "annotation-not-a-string.yaml": "devices[0].annotations.slot is 3, not a string",
    "clos-id.yaml": "closID '../other' cannot name a directory",
    "cut-off.json": "is not JSON: Expecting value: line 2",
    "device-name-not-a-string.yaml": "devices[0].name is on, which YAML does not read as a string",
    "device-name-with-slash.yaml": "CDI device name 'a/b' has the character '/'",
    "device-twice.yaml": "devices[1] is the second device named 'a'",
    "device-without-edits.yaml": "devices[0] has no container edits",
    "devices-empty.json": "has no devices",
    "devices-missing.yaml": "has no devices",
    "empty-object.json": "has no cdiVersion",
    "empty.json": "is empty",
    "env-without-name.yaml": "env[0] is '=1', not a variable",
    "gid-negative.yaml": "additionalGids[0] is -1, not in 0 to 4294967295",
    "hook-env.yaml": "hooks[0].env[0] is 'DEBUG', not a variable",
    "hook-name.yaml": "hookName is 'startcontainer', not an OCI hook",
    "hook-without-path.yaml": "hooks[0] has no path",
    "key-twice.json": "has the duplicate key 'kind' in one object",
    "key-twice.yaml": "in line 6: duplicate key 'containerEdits'",
    "kind-of-one-letter.yaml": "kind: CDI vendor 'v' has only one letter",
    "kind-without-class.yaml": "kind: 'vendor.com' is not a CDI kind",
    "mount-option-not-a-list.yaml": "mounts[0].options is 'ro', not a list",
    "mount-without-host-path.yaml": "mounts[0] has no hostPath",
    "net-device-twice.yaml": "netDevices[1].name is 'eth1', a duplicate",
    "node-major-quoted.yaml": "deviceNodes[0].major is '1', not a number",
    "node-major-too-large.yaml": "deviceNodes[0].major is 4096, not in 0 to 4095",
    "node-permissions.yaml": "deviceNodes[0].permissions is 'rx'",
    "node-type.yaml": "deviceNodes[0].type is 'char', not a node type",
    "node-without-path.yaml": "deviceNodes[0] has no path",
    "not-a-number.json": "deviceNodes[0].major is 'NaN', not a number",
    "only-a-comment.yaml": "is empty",
    "schema-field-spelling.yaml": "",
    "schema-file-type-in-mode.yaml": "",
    "schema-relative-container-path.yaml": "",
    "schema-relative-hook.yaml": "",
    "tag.yaml": "in line 4: a CDI spec has no tag",
    "two-documents.yaml": "in line 5: but found another document",
    "unknown-field.yaml": "deviceNodes[0] has the unknown field 'filemode2'",
    "version-missing.yaml": "has no cdiVersion",
    "version-too-low.yaml": "cdiVersion is 0.4.0, but a device name that begins with a digit needs",
    "version-unknown.yaml": "cdiVersion '0.9.0' is unknown",
}


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_a_good_example_is_valid_by_code_and_by_schema(path: Path) -> None:
    spec = load.load_file(str(path))

    assert spec["devices"]
    schema.check(load.parse(path.read_bytes(), source=path.name), source=path.name)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
@pytest.mark.parametrize("form", store.FORMATS)
def test_a_good_example_survives_being_written(path: Path, form: str) -> None:
    spec = load.load_file(str(path))

    again = load.loads(store.dumps(spec, form), source="again")

    assert again["devices"] == spec["devices"]
    assert again.get("containerEdits") == spec.get("containerEdits")
    assert again.get("annotations") == spec.get("annotations")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_example_is_refused_for_its_reason(path: Path) -> None:
    reason = REASONS[path.name]
    if not reason:
        spec = load.load_file(str(path))
        assert spec["devices"]
        with pytest.raises(CdiSpecError, match="breaks the schema"):
            schema.check(load.parse(path.read_bytes(), source=path.name), source=path.name)
        return

    with pytest.raises(CdiSpecError) as caught:
        load.load_file(str(path))

    assert caught.value.message.startswith(str(path))
    assert reason in caught.value.message
    assert len(line("nvidia-ctk", caught.value)) <= 200


OUTCOMES = """
import json, sys
if sys.argv[1] == "python":
    sys.modules["yaml._yaml"] = None
import yaml
from nvct.cdi.read import load
from nvct.errors import CdiSpecError
found = {"": yaml.__with_libyaml__}
for path in sys.argv[2:]:
    try:
        found[path] = load.load_file(path)
    except CdiSpecError as error:
        found[path] = "refused"
print(json.dumps(found))
"""


def test_without_libyaml_the_same_specs_are_read() -> None:
    paths = [str(path) for path in GOOD + BAD]
    by_reader = {}

    for reader in ("libyaml", "python"):
        command = [sys.executable, "-c", OUTCOMES, reader, *paths]
        done = subprocess.run(command, capture_output=True, check=True, cwd=CDI.parent)
        by_reader[reader] = json.loads(done.stdout)

    assert by_reader["python"].pop("") is False
    by_reader["libyaml"].pop("")  # PyYAML may be installed without it
    assert by_reader["python"] == by_reader["libyaml"]


def test_every_reason_has_its_example() -> None:
    assert sorted(REASONS) == [path.name for path in BAD]


def test_the_schema_at_the_top_is_the_one_that_the_code_uses() -> None:
    assert json.loads((CDI / "schema.json").read_text()) == schema.schema()
    jsonschema.Draft7Validator.check_schema(schema.schema())
