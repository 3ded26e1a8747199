/* SPDX-License-Identifier: Apache-2.0
 *
 * Common declarations of the stand-in for nvidia-cuda-mps-control. Options, commands, answers and
 * exit statuses are those of the real program's manual; how its processes talk to each other is
 * this stand-in's own.
 */
#ifndef NVCT_SIM_MPS_H
#define NVCT_SIM_MPS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { MAX_DEVICES = 64, MAX_CLIENTS = 48, MAX_SERVERS = 16, COMMANDS_SIZE = 4096, OPEN_FILES = 64 };

/* Files in the pipe directory. */
#define CONTROL_SOCKET "control"
#define PID_FILE "nvidia-cuda-mps-control.pid"

/* commands.c: carries out the lines of a text; returns whether the daemon is to end. */
bool run_commands(char *text, FILE *out);

/* commands.c: the limit in MiB of the server of a user's clients for device 0, 0 without one. If no
 * server runs, one is started; it replaces another user's unless is_multi_user. */
unsigned long long server_limit_mib(uid_t uid, bool is_multi_user);

/* Parse an amount such as 20G or 512M in MiB, 0 if it is malformed; end is the text after it. */
unsigned long long parse_amount(const char *text, const char **end);

/* daemon.c: serves in the current folder, which is the pipe directory. */
int serve(bool in_background, bool is_multi_user, const char *log_directory);

/* clients.c: stands for a CUDA program that allocates memory on device 0, and ends at the end of its
 * standard input. */
int run_client(int daemon, const char *amount);

/* clients.c: takes the connection of such a program; false if the text is no client's. */
bool take_client(int connection, const char *text, bool is_multi_user);

/* clients.c: waits for a new connection, and removes clients that have ended. */
void wait_for_connection(int listener, bool is_multi_user);

#endif
