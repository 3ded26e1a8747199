# SPDX-License-Identifier: Apache-2.0
"""Bills of materials, in SPDX 2.3: from metadata of packages, and what nvct-hot says of itself."""

from __future__ import annotations

import datetime as dt
import email.parser
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NONE = "NOASSERTION"
HOT = re.compile(rb"Python (\S+), source package of Debian\nmusl ([^\n\0]+)")
"""What nvct-hot says of itself, as interpreter.sh writes it."""


@dataclass(frozen=True, order=True)
class Component:
    """A package in the image.

    Attributes:
        kind: "deb", "pypi" or "generic".
        name: its name.
        version: its version.
        license: an SPDX expression, "" if its metadata has none.
        architecture: of a Debian package.
        release: Debian's, e.g. 13.
    """

    kind: str
    name: str
    version: str
    license: str = ""
    architecture: str = ""
    release: str = ""

    @property
    def purl(self) -> str:
        """Return its package URL."""
        if self.kind == "deb":
            version = self.version.replace("+", "%2B").replace(":", "%3A")
            release = f"&distro=debian-{self.release}" if self.release else ""
            return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}{release}"
        return f"pkg:{self.kind}/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"


def of_dpkg(status: str, release: str) -> list[Component]:
    """Return the installed packages of dpkg's status."""
    found = []
    for stanza in re.split(r"\n\n+", status.strip()):
        fields = email.parser.HeaderParser().parsestr(stanza)
        if fields["Package"] and fields.get("Status", "installed").endswith("installed"):
            name, version = fields["Package"], fields["Version"]
            found.append(Component("deb", name, version, "", fields["Architecture"], release))
    return found


def of_wheels(site: Path) -> list[Component]:
    """Return the packages of a folder that pip installed into."""
    found = []
    for file in sorted(site.rglob("*.dist-info/METADATA")):
        head = file.read_text(encoding="utf-8").partition("\n\n")[0]
        fields = email.parser.HeaderParser().parsestr(head)
        terms = fields.get("License-Expression", "")
        found.append(Component("pypi", fields["Name"], fields["Version"], terms))
    return [one for one in found if one.name != "nvct"]


def of_folder(root: Path) -> list[Component]:
    """Return others' work in an unpacked package or bundle."""
    found = of_wheels(root)
    for file in sorted(root.rglob("dpkg-status")):
        found += of_dpkg(file.read_text(encoding="utf-8"), "")
    for file in sorted(root.rglob("nvct-hot")):
        said = HOT.search(file.read_bytes())
        if said is None:
            raise ValueError(f"{file} does not say which Python it has inside")
        python, musl = (text.decode() for text in said.groups())
        found.append(Component("deb", "python3.13", python, "", "source"))
        _, of_zig, version = musl.rpartition("of zig ")
        found.append(
            Component("generic", "zig-musl", version) if of_zig
            else Component("deb", "musl", version, "", "source")
        )  # fmt: skip
    return found


def document(
    version: str, components: Iterable[Component], when: int, file: Path | None = None
) -> str:
    """Return the SPDX document of the image, or of a file.

    Args:
        version: nvct's.
        components: what else is in it.
        when: its time, in seconds since 1970.
        file: a package or archive.
    """
    nvct = Component("generic", "nvct", version, "Apache-2.0")
    name = file.name if file else f"nvct-{version}"
    every = [nvct, *sorted(set(components))]
    digest = hashlib.sha256(repr(every).encode()).hexdigest()[:16]
    ids = [f"SPDXRef-{n}-{re.sub('[^A-Za-z0-9.-]', '-', c.name)}" for n, c in enumerate(every)]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", ids[0])]
    relations += [(ids[0], "CONTAINS", other) for other in ids[1:]]
    created = f"{dt.datetime.fromtimestamp(when, tz=dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    packages = [_package(*pair) for pair in zip(ids, every, strict=True)]
    if file:
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        packages[0] |= {
            "packageFileName": name,
            "checksums": [{"algorithm": "SHA256", "checksumValue": checksum}],
        }
    spdx = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:spdx:{name}-{digest}",
        "creationInfo": {"created": created, "creators": [f"Tool: nvct-{version}"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
            for a, kind, b in relations
        ],
    }
    return json.dumps(spdx, indent=1) + "\n"


def _package(name: str, component: Component) -> dict[str, object]:
    return {
        "SPDXID": name,
        "name": component.name,
        "versionInfo": component.version,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": NONE,
        "licenseDeclared": component.license or NONE,
        "copyrightText": NONE,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": component.purl,
            }
        ],
    }
