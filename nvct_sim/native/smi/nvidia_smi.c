/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated nvidia-smi: its options, and the output of -L and --version. Output and exit
 * statuses are the real program's.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

/* The real program has a message of its own for a missing driver. */
static int report_initialization(nvmlReturn_t result)
{
    switch (result) {
    case NVML_ERROR_DRIVER_NOT_LOADED:
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
             "Make sure that the latest NVIDIA driver is installed and running.\n");
        return (int)result;
    default:
        return fail("Failed to initialize NVML", result);
    }
}

static void list_mig_devices(const struct gpu_entry *gpu)
{
    for (unsigned i = 0; i < max_mig_devices(gpu); i++) {
        char name[2 * NVML_NAME_LENGTH], uuid[NVML_NAME_LENGTH];
        nvmlDevice_t device = mig_device(gpu, i);
        if (!device || nvml.nvmlDeviceGetName(device, name, sizeof(name)) ||
            nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)))
            continue;
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 5 : name, i, uuid);
    }
}

static int print_list(const struct gpu_list *list, const char *ids)
{
    int status = EXIT_DONE; /* also without a GPU, like the real program */
    if (!list->count)
        puts("No devices found.");
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (!is_selected(gpu, ids))
            continue;
        if (gpu->status) {
            status = report_unavailable(gpu);
            continue;
        }
        printf("GPU %u: %s (UUID: %s)\n", i, gpu->name, gpu->uuid);
        list_mig_devices(gpu);
    }
    return status;
}

static int print_version(void)
{
    struct versions versions;
    char library[80] = "N/A";
    read_versions(&versions);
    nvml.nvmlSystemGetNVMLVersion(library, sizeof(library));
    char *nvml_version = strchr(library, '.'); /* "13.580.159.04" -> "580.159" */
    nvml_version = nvml_version ? nvml_version + 1 : library;
    char *dot = strchr(nvml_version, '.');
    if (dot && (dot = strchr(dot + 1, '.')))
        *dot = '\0';
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\n"
           "CUDA Version        : %s\n", versions.driver, nvml_version, versions.driver,
           versions.cuda);
    return EXIT_DONE;
}

static int usage(void)
{
    puts("NVIDIA System Management Interface -- simulated by nvct\n\n"
         "nvidia-smi                       a table of the GPUs\n"
         "    -L, --list-gpus              one GPU or MIG device a line\n"
         "    --version                    versions of the driver, NVML and CUDA\n"
         "    -i, --id=ID                  only this GPU: index, UUID or bus id\n"
         "    -q, --query                  all that is known of each GPU\n"
         "    -x, --xml-format             with -q: as XML\n"
         "    -d, --display=GROUP,...      with -q: only MEMORY, POWER ...\n"
         "    --query-gpu=FIELD,...        with --format=csv[,noheader][,nounits]\n"
         "    --query-compute-apps=FIELD,...    the same; no process runs on a simulated GPU\n"
         "    topo -m                      how GPUs are joined\n"
         "    -mig, --multi-instance-gpu=MODE   0 or 1\n"
         "    -c, --compute-mode=MODE      0 DEFAULT, 2 PROHIBITED or 3 EXCLUSIVE_PROCESS\n"
         "    compute-policy --set-timeslice=N   0 default to 3 long; accepted without effect\n"
         "    -r, --gpu-reset              reset the GPUs, which no process may use\n"
         "    mig -lgip | -lgi | -lci      MIG profiles, GPU instances, compute instances\n"
         "    mig -cgi PROFILE,... [-C]    create GPU instances (with compute instances)\n"
         "    mig -cci [-gi ID] | -dci [-gi ID] [-ci ID] | -dgi [-gi ID]");
    return EXIT_DONE;
}

/* The value of `-i X`, `--id X` or `--id=X`, or NULL if the argument is another option. */
static const char *value_of(int argc, char **argv, int *i, const char *brief, const char *verbose)
{
    size_t n = strlen(verbose);
    if (strncmp(argv[*i], verbose, n) == 0 && argv[*i][n] == '=')
        return argv[*i] + n + 1;
    if (strcmp(argv[*i], verbose) != 0 && strcmp(argv[*i], brief) != 0)
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

struct options {
    const char *id, *query, *processes, *format, *mig_mode, *compute_mode, *time_slice, *groups;
    bool list, version, help, report, xml, reset;
};

static int parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
            o->list = true;
        else if (!strcmp(argv[i], "--version"))
            o->version = true;
        else if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
            o->help = true;
        else if (!strcmp(argv[i], "-q") || !strcmp(argv[i], "--query"))
            o->report = true;
        else if (!strcmp(argv[i], "-x") || !strcmp(argv[i], "--xml-format"))
            o->xml = true;
        else if (!strcmp(argv[i], "-r") || !strcmp(argv[i], "--gpu-reset"))
            o->reset = true;
        else if ((value = value_of(argc, argv, &i, "-d", "--display")))
            o->groups = value;
        else if ((value = value_of(argc, argv, &i, "--query-compute-apps",
                                   "--query-compute-apps")))
            o->processes = value;
        else if ((value = value_of(argc, argv, &i, "-i", "--id")))
            o->id = value;
        else if ((value = value_of(argc, argv, &i, "--query-gpu", "--query-gpu")))
            o->query = value;
        else if ((value = value_of(argc, argv, &i, "--format", "--format")))
            o->format = value;
        else if ((value = value_of(argc, argv, &i, "-mig", "--multi-instance-gpu")))
            o->mig_mode = value;
        else if ((value = value_of(argc, argv, &i, "--set-timeslice", "--set-timeslice")))
            o->time_slice = value;
        else if ((value = value_of(argc, argv, &i, "-c", "--compute-mode")))
            o->compute_mode = value;
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
                   "Option \"%s\" is not recognized.\n", argv[i]);
            return EXIT_INVALID_ARGUMENT;
        }
    }
    if ((o->xml || o->groups) && !o->report) {
        printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
               "\"%s\" wants \"-q\".\n", o->xml ? "-x" : "-d");
        return EXIT_INVALID_ARGUMENT;
    }
    return EXIT_DONE;
}

static int run(const struct gpu_list *list, const struct options *o)
{
    bool selected = !o->id;
    for (unsigned i = 0; i < list->count; i++)
        selected = selected || is_selected(&list->gpus[i], o->id);
    if (!selected) {
        puts("No devices were found");
        return EXIT_NOT_FOUND;
    }
    if (o->version)
        return print_version();
    if (o->mig_mode)
        return set_mig_mode(list, o->id, o->mig_mode);
    if (o->compute_mode)
        return set_compute_mode(list, o->id, o->compute_mode);
    if (o->time_slice)
        return set_time_slice(list, o->id, o->time_slice);
    if (o->reset)
        return reset_gpus(list, o->id);
    if (o->list)
        return print_list(list, o->id);
    if (!list->count) {
        puts("No devices were found");
        return EXIT_NOT_FOUND;
    }
    if (o->query)
        return print_query(list, o->id, o->query, o->format);
    if (o->processes)
        return print_processes(o->processes, o->format);
    if (o->report)
        return print_report(list, o->id, o->groups, o->xml);
    return print_table(list, o->id);
}

int main(int argc, char **argv)
{
    static struct gpu_list list;
    struct options options = {0};
    bool mig = argc > 1 && strcmp(argv[1], "mig") == 0;
    bool topology = argc > 1 && strcmp(argv[1], "topo") == 0;
    bool policy = argc > 1 && strcmp(argv[1], "compute-policy") == 0;
    int status = mig || topology ? EXIT_DONE : parse(argc - policy, argv + policy, &options);
    if (status || options.help)
        return status ? status : usage();
    if (!load_nvml()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure "
             "that the NVIDIA Display Driver is properly installed and present in your system.\n"
             "Please also try adding directory that contains libnvidia-ml.so to your system PATH.");
        return 12; /* NVML_ERROR_LIBRARY_NOT_FOUND */
    }
    nvmlReturn_t result = nvml.nvmlInit_v2();
    if (result)
        return report_initialization(result);
    result = list_gpus(&list);
    if (result)
        return fail("Failed to count the GPUs", result);
    status = mig        ? run_mig(&list, argc - 2, argv + 2)
             : topology ? run_topology(&list, argc - 2, argv + 2)
                        : run(&list, &options);
    nvml.nvmlShutdown();
    return status;
}
