# SPDX-License-Identifier: Apache-2.0
"""The API server: its client, a Node followed, what `nvct cluster` and `explain POD` ask."""
