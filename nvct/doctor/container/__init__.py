# SPDX-License-Identifier: Apache-2.0
"""What is known of one container: its creation, its devices, and who uses them."""
