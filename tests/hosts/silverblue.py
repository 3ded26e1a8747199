# SPDX-License-Identifier: Apache-2.0
"""Fedora Silverblue: the packages of fedora.py in an ostree deployment, /usr/local in /var."""

from tests.hosts import fedora
from tests.hosts.base import Platform

SOURCE = f"""
https://docs.fedoraproject.org/en-US/fedora-silverblue/technical-information/ and ostree's
"Adapting existing mainstream distributions": the root is a deployment whose /bin, /lib, /lib64 and
/sbin are links into /usr, /home, /opt and /usr/local are links into /var. The packages are RPM
Fusion's, layered by rpm-ostree:
{fedora.SOURCE}
"""
PLATFORM = Platform(
    source=SOURCE,
    version=fedora.PLATFORM.version,
    model=fedora.PLATFORM.model,
    files=fedora.FILES + """
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/sbin -> usr/sbin
/usr/sbin -> bin
/home -> var/home
/opt -> var/opt
/ostree -> sysroot/ostree
/usr/local -> ../var/usrlocal
/var/usrlocal/bin/podman-wrapper
/sysroot/ostree/repo/config
""",
    cached=("/usr/lib64",),
    left_out={"/var/usrlocal/*": "not the driver's", "/sysroot/*": "not the driver's"},
)  # fmt: skip
