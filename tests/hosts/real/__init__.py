# SPDX-License-Identifier: Apache-2.0
"""Lists of real drivers' packages (tests.support.driver_list), one file each."""
