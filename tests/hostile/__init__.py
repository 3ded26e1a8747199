# SPDX-License-Identifier: Apache-2.0
"""Images, bundles and spec files that were made to do harm, one shape of attack a test."""
