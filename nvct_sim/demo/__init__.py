# SPDX-License-Identifier: Apache-2.0
"""`make demo`: containers and engines on a simulated node."""
