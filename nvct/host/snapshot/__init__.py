# SPDX-License-Identifier: Apache-2.0
"""`nvct snapshot`: this host recorded as data, without secrets."""
