# SPDX-License-Identifier: Apache-2.0
"""The API server: client, watch of the Node, questions of `nvct cluster` and `explain POD`."""
