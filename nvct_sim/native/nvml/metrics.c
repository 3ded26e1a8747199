/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and measured values of a GPU that scripts set to rehearse failures, with their keys.
 */
#include <string.h>

#include "simulation.h"

/* In the order of `enum metric`. Units: clocks in MHz, power in milliwatts, energy in millijoules,
 * its time in microseconds since 1970, PCIe in KB/s, NVLink in KiB since the start, violations in
 * nanoseconds, activity in per cent, `hang` in milliseconds since 1970. */
static const char *const keys[METRICS] = {
    "ecc_corrected", "ecc_uncorrected", "ecc_corrected_total", "ecc_uncorrected_total",
    "remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed",
    "retired_sbe", "retired_dbe", "retired_pending",
    "throttle", "recovery", "power_usage", "energy", "energy_at", "memtemp",
    "memutil", "encutil", "decutil", "smclock", "memclock",
    "pcie_replays", "pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx",
    "nvlink_crc_flit", "nvlink_crc_data", "nvlink_replays", "nvlink_recoveries",
    "violation_power", "violation_thermal",
    "gr_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active",
    "fp32_active", "fp16_active", "compute_mode", "hang",
    "eccnext", "pciewidth", "pciegen", "linksdown",
};

void parse_metrics(const char *line, struct gpu *gpu)
{
    for (const char *p = line; *p && *p != '\n'; p += *p == '\t') {
        size_t n = strcspn(p, "\t\n"), key = strcspn(p, "=\t\n");
        for (unsigned i = 0; key < n && i < METRICS; i++) {
            const char *at = p + key + 1;
            if (strlen(keys[i]) == key && memcmp(p, keys[i], key) == 0 &&
                parse_number(&at, &gpu->metrics[i]))
                gpu->has_metric |= 1ULL << i;
        }
        p += n;
    }
}

bool find_metric(const struct gpu *gpu, enum metric metric, unsigned long long *out)
{
    bool found = gpu->has_metric >> metric & 1;
    if (found)
        *out = gpu->metrics[metric];
    return found;
}

unsigned long long metric_or(const struct gpu *gpu, enum metric metric, unsigned long long otherwise)
{
    find_metric(gpu, metric, &otherwise);
    return otherwise;
}
