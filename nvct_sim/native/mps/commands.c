/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's commands: limits of future clients, servers, quit.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mps.h"

static double percentage = 100;
static unsigned long long limits_mib[MAX_DEVICES]; /* 0: none */
static pid_t servers[MAX_SERVERS];
static unsigned long long server_limits_mib[MAX_SERVERS][MAX_DEVICES]; /* from its start on */
static uid_t clients_uid;

/* Parse the number at the start of a text. Newer C libraries have strtoull under a new symbol. */
static const char *parse_number(const char *text, unsigned long long *out)
{
    for (*out = 0; *text >= '0' && *text <= '9' && *out < 1ULL << 40; text++)
        *out = *out * 10 + (unsigned)(*text - '0');
    return text;
}

/* A device is an index. A UUID is accepted and has no effect, as in the real program. */
static bool parse_device(const char *text, unsigned *out)
{
    unsigned long long n;
    if (!text || !*text || *parse_number(text, &n) || n >= MAX_DEVICES)
        return false;
    *out = (unsigned)n;
    return true;
}

unsigned long long parse_amount(const char *text, const char **end)
{
    unsigned long long n;
    const char *unit = parse_number(text, &n);
    *end = *unit ? unit + 1 : unit;
    return *unit == 'G' ? n * 1024 : *unit == 'M' ? n : 0;
}

static void set_limit(const char *device, const char *value, FILE *out)
{
    unsigned index = 0;
    const char *end = "";
    unsigned long long mib = value ? parse_amount(value, &end) : 0;
    bool is_uuid = device && strncmp(device, "GPU-", 4) == 0;
    if (!mib || *end || (!is_uuid && !parse_device(device, &index)))
        fprintf(out, "Invalid parameters\n");
    else if (!is_uuid)
        limits_mib[index] = mib;
}

/* Print whole units only, like the real program of driver 580: 3840M as 3G, nothing without a
 * limit. */
static void show_limit(const char *device, FILE *out)
{
    unsigned index = 0;
    if (!parse_device(device ? device : "0", &index))
        fprintf(out, "Invalid parameters\n");
    else if (limits_mib[index] >= 1024)
        fprintf(out, "%lluG\n", limits_mib[index] / 1024);
    else if (limits_mib[index])
        fprintf(out, "%lluM\n", limits_mib[index]);
}

static void set_percentage(const char *value, FILE *out)
{
    char *end = NULL;
    double n = value ? strtod(value, &end) : 0;
    if (!end || *end || n <= 0 || n > 100)
        fprintf(out, "Invalid parameters\n");
    else
        fprintf(out, "%.1f\n", percentage = n);
}

/* Start a process that does nothing, and ends with the daemon. */
static void start_server(void)
{
    pid_t daemon = getpid();
    for (int i = 0; i < MAX_SERVERS; i++) {
        if (servers[i])
            continue;
        servers[i] = fork();
        if (servers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prctl(PR_SET_NAME, "nvidia-cuda-mps");
            for (int fd = 0; fd < OPEN_FILES; fd++)
                close(fd); /* the client waits for the end of its answer */
            while (getppid() == daemon)
                pause();
            _exit(0);
        }
        memcpy(server_limits_mib[i], limits_mib, sizeof(limits_mib));
        return;
    }
}

static void show_servers(FILE *out)
{
    for (int i = 0; i < MAX_SERVERS; i++)
        if (servers[i] > 0)
            fprintf(out, "%d\n", (int)servers[i]);
}

static void end_servers(void)
{
    for (int i = 0; i < MAX_SERVERS; i++) {
        if (servers[i] > 0 && kill(servers[i], SIGKILL) == 0)
            waitpid(servers[i], NULL, 0);
        servers[i] = 0;
    }
}

unsigned long long server_limit_mib(uid_t uid, bool is_multi_user)
{
    if (!is_multi_user && uid != clients_uid)
        end_servers();
    clients_uid = uid;
    if (!servers[0])
        start_server();
    return server_limits_mib[0][0];
}

static void set_server_limit(const char *server, const char *device, const char *value, FILE *out)
{
    unsigned long long pid = 0;
    const char *end = "";
    unsigned index = 0;
    unsigned long long mib = value ? parse_amount(value, &end) : 0;
    if (server)
        parse_number(server, &pid);
    for (int i = 0; i < MAX_SERVERS && mib && !*end && parse_device(device, &index); i++) {
        if (pid && servers[i] == (pid_t)pid) {
            server_limits_mib[i][index] = mib;
            return;
        }
    }
    fprintf(out, "Invalid parameters\n");
}

bool run_commands(char *text, FILE *out)
{
    char *line, *rest = text;
    while ((line = strsep(&rest, "\n"))) {
        char *words, *name = strtok_r(line, " \t\r", &words);
        char *first = strtok_r(NULL, " \t\r", &words), *second = strtok_r(NULL, " \t\r", &words);
        char *third = strtok_r(NULL, " \t\r", &words);
        if (!name)
            continue;
        if (strcmp(name, "quit") == 0) {
            end_servers();
            return true;
        }
        if (strcmp(name, "get_default_active_thread_percentage") == 0)
            fprintf(out, "%.1f\n", percentage);
        else if (strcmp(name, "set_default_active_thread_percentage") == 0)
            set_percentage(first, out);
        else if (strcmp(name, "get_default_device_pinned_mem_limit") == 0)
            show_limit(first, out);
        else if (strcmp(name, "set_default_device_pinned_mem_limit") == 0)
            set_limit(first, second, out);
        else if (strcmp(name, "set_device_pinned_mem_limit") == 0)
            set_server_limit(first, second, third, out);
        else if (strcmp(name, "set_active_thread_percentage") == 0)
            fprintf(out, "%s\n", second ? second : "Invalid parameters");
        else if (strcmp(name, "start_server") == 0)
            start_server();
        else if (strcmp(name, "get_server_list") == 0)
            show_servers(out);
        else
            fprintf(out, "Unknown command \"%s\"\n", name);
    }
    return false;
}
