# SPDX-License-Identifier: Apache-2.0
"""Keys and values of labels: what Kubernetes accepts, and how a text becomes a value.

Syntax: kubernetes.io, "Labels and Selectors", and apimachinery's validation of qualified names.
"""

from __future__ import annotations

import re

LIMIT = 63
"""Characters of a value, and of the part of a key after the slash."""
PREFIX_LIMIT = 253
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9-_. ]")
ENDS = "-_."


def sanitized(text: str) -> str:
    """Return a text as a label's value; e.g. Tesla T4 as Tesla-T4.

    As NVIDIA's GPU feature discovery; unlike there, Kubernetes accepts the value of any text.
    """
    words = OTHER_CHARACTERS.sub("", text).split()
    return "-".join(words)[:LIMIT].strip(ENDS)


def joined(product: str, *suffixes: str) -> str:
    """Return a product with suffixes as a value; the product is cut if it is too long."""
    tail = "".join(f"-{suffix}" for suffix in suffixes)
    return product[: LIMIT - len(tail)].rstrip(ENDS) + tail


def is_value(text: str) -> bool:
    """Return whether Kubernetes accepts a text as a label's value."""
    return len(text) <= LIMIT and bool(VALUE.fullmatch(text))


def is_key(text: str) -> bool:
    """Return whether Kubernetes accepts a text as a label's key."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > PREFIX_LIMIT or not SUBDOMAIN.fullmatch(prefix)):
        return False
    return bool(name) and is_value(name)
