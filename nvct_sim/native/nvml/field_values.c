/* SPDX-License-Identifier: Apache-2.0
 *
 * Single values by number: nvmlDeviceGetFieldValues.
 */
#include "simulation.h"

enum field {
    ECC_CURRENT = 1, ECC_PENDING, CORRECTED, UNCORRECTED, CORRECTED_AGGREGATE,
    UNCORRECTED_AGGREGATE, PAGES_SBE = 29, PAGES_DBE, PAGES_PENDING,
    CRC_FLIT_TOTAL = 38, CRC_DATA_TOTAL = 45, REPLAY_TOTAL = 52, RECOVERY_TOTAL = 59,
    POLICY_POWER = 74, POLICY_THERMAL, POLICY_LAST = 81, MEMORY_TEMP, TOTAL_ENERGY, NVLINKS = 91,
    REPLAYS = 94, LINK_DATA_TX = 138, LINK_DATA_RX, REMAPPED_CORRECTED = 142, REMAPPED_UNCORRECTED,
    REMAPPING_PENDING, REMAPPING_FAILED, POWER_AVERAGE = 185, POWER_NOW, POWER_MIN, POWER_MAX,
    POWER_DEFAULT, POWER_LIMIT, RECOVERY_ACTION = 230,
};

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                             unsigned long long *out);
API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                           unsigned long long *addresses);
API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out);
API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                           unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed);
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min,
                                                              unsigned *max);

static nvmlReturn_t read_links(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_constant(gpu, gpu->n_links, out);
}

/* Only HBM has a sensor. */
static nvmlReturn_t read_memory_temperature(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    enum { HBM_BITS = 3072, WARMER = 4 };
    unsigned long long celsius = gpu->temperature + WARMER;
    (void)argument;
    if (!find_metric(gpu, MEMORY_TEMPERATURE, &celsius) &&
        (!gpu->temperature || gpu->bus_width < HBM_BITS))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)celsius;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_recovery(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_constant(gpu, (unsigned)metric_or(gpu, RECOVERY, 0), out);
}

static nvmlReturn_t read_remapped(nvmlDevice_t device, unsigned field, unsigned *out)
{
    unsigned rows[4];
    nvmlReturn_t result = nvmlDeviceGetRemappedRows(device, &rows[0], &rows[1], &rows[2], &rows[3]);
    *out = rows[field - REMAPPED_CORRECTED];
    return result;
}

static nvmlReturn_t count_retired(nvmlDevice_t device, unsigned field, unsigned *out)
{
    nvmlReturn_t result = nvmlDeviceGetRetiredPages(device, field - PAGES_SBE, out, NULL);
    return result == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : result;
}

/* A field of 32 bits. */
static nvmlReturn_t read_field32(nvmlDevice_t device, unsigned field, unsigned *out)
{
    unsigned ignored;
    switch (field) {
    case ECC_CURRENT:
        return nvmlDeviceGetEccMode(device, out, &ignored);
    case ECC_PENDING:
        return nvmlDeviceGetEccMode(device, &ignored, out);
    case PAGES_SBE:
    case PAGES_DBE:
        return count_retired(device, field, out);
    case PAGES_PENDING:
        return nvmlDeviceGetRetiredPagesPendingStatus(device, out);
    case MEMORY_TEMP:
        return read_number(device, read_memory_temperature, 0, out);
    case NVLINKS:
        return read_number(device, read_links, 0, out);
    case REPLAYS:
        return nvmlDeviceGetPcieReplayCounter(device, out);
    case REMAPPED_CORRECTED:
    case REMAPPED_UNCORRECTED:
    case REMAPPING_PENDING:
    case REMAPPING_FAILED:
        return read_remapped(device, field, out);
    case POWER_AVERAGE:
    case POWER_NOW:
        return nvmlDeviceGetPowerUsage(device, out);
    case POWER_MIN:
        return nvmlDeviceGetPowerManagementLimitConstraints(device, out, &ignored);
    case POWER_MAX:
        return nvmlDeviceGetPowerManagementLimitConstraints(device, &ignored, out);
    case POWER_DEFAULT:
    case POWER_LIMIT:
        return nvmlDeviceGetPowerManagementLimit(device, out);
    case RECOVERY_ACTION:
        return read_number(device, read_recovery, 0, out);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* A metric of 64 bits; for the bytes of NVLinks, `scope` is a link or all links. */
static nvmlReturn_t read_metric(nvmlDevice_t device, enum metric metric, unsigned scope,
                                unsigned long long *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    bool is_link = metric >= NVLINK_TX && metric <= NVLINK_RECOVERIES;
    bool is_traffic = metric == NVLINK_TX || metric == NVLINK_RX;
    if (is_link && !t.gpu->n_links)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    if (is_traffic && scope != UINT_MAX && scope >= t.gpu->n_links)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *out = metric_or(t.gpu, metric, 0);
    if (is_traffic && scope != UINT_MAX)
        *out /= t.gpu->n_links;
    return finish(NVML_SUCCESS);
}

/* Return METRICS if the field has no metric. */
static enum metric metric_of(unsigned field)
{
    switch (field) {
    case CRC_FLIT_TOTAL:
        return NVLINK_CRC_FLIT;
    case CRC_DATA_TOTAL:
        return NVLINK_CRC_DATA;
    case REPLAY_TOTAL:
        return NVLINK_REPLAYS;
    case RECOVERY_TOTAL:
        return NVLINK_RECOVERIES;
    case POLICY_POWER:
        return VIOLATION_POWER;
    case POLICY_THERMAL:
        return VIOLATION_THERMAL;
    case LINK_DATA_TX:
        return NVLINK_TX;
    case LINK_DATA_RX:
        return NVLINK_RX;
    default:
        return METRICS;
    }
}

static nvmlReturn_t read_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned number = 0, id = field->fieldId;
    nvmlReturn_t result;
    field->value = 0;
    field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
    if (id >= CORRECTED && id <= UNCORRECTED_AGGREGATE)
        return nvmlDeviceGetTotalEccErrors(device, (id - CORRECTED) % 2, (id - CORRECTED) / 2,
                                           &field->value);
    if (id == TOTAL_ENERGY)
        return nvmlDeviceGetTotalEnergyConsumption(device, &field->value);
    if (metric_of(id) != METRICS)
        return read_metric(device, metric_of(id), field->scopeId, &field->value);
    if (id > POLICY_THERMAL && id <= POLICY_LAST)
        return NVML_SUCCESS; /* no time was lost by these policies */
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    result = read_field32(device, id, &number);
    field->value = result ? 0 : number;
    return result;
}

/* The call succeeds; each field has its own result. */
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    finish(NVML_SUCCESS);
    if (count <= 0 || !values)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}
