# SPDX-License-Identifier: Apache-2.0
"""The whole chain on a machine with a real GPU and no network; see __main__.py."""
