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

enum { MAX_DEVICES = 64, MAX_SERVERS = 16, COMMANDS_SIZE = 4096, OPEN_FILES = 64 };

/* In the pipe directory. */
#define CONTROL_SOCKET "control"
#define PID_FILE "nvidia-cuda-mps-control.pid"

/* commands.c: carries out the lines of a text; returns whether the daemon is to end. */
bool run_commands(char *text, FILE *out);

/* daemon.c: serves in the current folder, which is the pipe directory. */
int serve(bool in_background, const char *log_directory);

#endif
