# SPDX-License-Identifier: Apache-2.0
"""`make demo`: containers on a simulated node."""
