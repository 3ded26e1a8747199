/* SPDX-License-Identifier: Apache-2.0
 *
 * Power, energy and temperature.
 */

#include "simulation.h"

/* A vGPU reports no power and temperature of its board. */
static nvmlReturn_t read_limit(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return gpu->power ? read_constant(gpu, gpu->power, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_limit, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_limit, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_limit, 0, out);
}

static nvmlReturn_t read_power_management(const struct gpu *gpu, unsigned on, unsigned *out)
{
    return gpu->power ? read_constant(gpu, on, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_power_management, 1, out);
}

static nvmlReturn_t read_power(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    if (!gpu->power)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned by_load = gpu->power / 10 + gpu->power / 100 * gpu->utilization / 100 * 90;
    *out = (unsigned)metric_or(gpu, POWER_USAGE, by_load); /* milliwatts */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_power, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min,
                                                              unsigned *max)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!min || !max)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->power)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *min = t.gpu->power / 7 * 2;
    *max = t.gpu->power;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    unsigned milliwatts;
    if (read_power(t.gpu, 0, &milliwatts))
        return finish(NVML_ERROR_NOT_SUPPORTED);
    /* Millijoules: those until ENERGY_AT, which a change of the power sets, and those since then. */
    const unsigned long long period = 1000000000000ULL, now = now_us();
    unsigned long long since = metric_or(t.gpu, ENERGY_AT, now / period * period);
    *out = metric_or(t.gpu, ENERGY, 0);
    *out += now > since ? (now - since) / 1000 * milliwatts / 1000 : 0;
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t read_temperature(const struct gpu *gpu, unsigned sensor, unsigned *out)
{
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return gpu->temperature ? read_constant(gpu, gpu->temperature, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    return read_number(device, read_temperature, sensor, out);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *io)
{
    unsigned celsius = 0;
    if (!io)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (io->version != NVML_STRUCT(nvmlTemperature_t, 1))
        return is_initialized() ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = read_number(device, read_temperature, io->sensorType, &celsius);
    if (!result)
        io->temperature = (int)celsius;
    return result;
}

static nvmlReturn_t read_threshold(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    static const unsigned char celsius[] = {92, 89, 95, 85}; /* shutdown, slowdown, memory, GPU */
    if (kind >= sizeof(celsius) || !gpu->temperature)
        return NVML_ERROR_NOT_SUPPORTED;
    return read_constant(gpu, celsius[kind], out);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind,
                                                   unsigned *out)
{
    return read_number(device, read_threshold, kind, out);
}
