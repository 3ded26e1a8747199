/* SPDX-License-Identifier: Apache-2.0
 *
 * What `nvct install` puts where engines call a program: sets the environment and starts the
 * program of the installed tree; or, where it stands for a runtime and no driver is loaded, the
 * low-level runtime. No shell script: engines start hooks with the environment of an image, and a
 * shell loads what LD_PRELOAD names (nvct/launcher/hook.h).
 *
 * What it has to know is written over the slot below (nvct/installer/programs.py): strings that end
 * in NUL, the program, the folder that comes first in PATH, and the path of config.toml; paths of
 * which one is there where a driver is loaded, and an empty string; names of low-level runtimes,
 * and an empty string. Without runtimes nothing is looked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "hook.h"

#define MARK "@nvct wrapper@"
#define ROOM 8192
/* volatile, so that the compiler does not look through it; the last byte stays NUL */
static volatile const char slot[sizeof MARK - 1 + ROOM + 2] = MARK;

static char words[ROOM + 2];
static char *word = words;

static char *next(void)
{
	char *found = word;
	word += strlen(word) + (word < words + ROOM);
	return found;
}

static int is_driver_loaded(void)
{
	struct stat s;
	int loaded = 0;
	for (const char *path = next(); *path; path = next())
		loaded |= !stat(path, &s);
	return loaded;
}

/* Become the first low-level runtime that is there. */
static _Noreturn void become_runtime(char **argv)
{
	char *first = word;
	fprintf(stderr, "nvidia driver modules are not yet loaded, invoking %s directly\n", first);
	for (argv[0] = next(); *argv[0]; argv[0] = next())
		execvp(argv[0], argv);
	fprintf(stderr, "no low-level runtime:");
	word = first;
	for (char *name = next(); *name; name = next())
		fprintf(stderr, "%s %s", name == first ? "" : ",", name);
	fprintf(stderr, "\n");
	_exit(127);
}

static void put_first_in_path(const char *folder)
{
	const char *path = getenv("PATH");
	char *made;
	if (!path)
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	if (asprintf(&made, "%s:%s", folder, path) < 0 || setenv("PATH", made, 1))
		_exit(1);
}

static void drop_what_may_be_an_images(const char *name, int argc, char **argv)
{
	if (!strcmp(name, "nvidia-cdi-hook") || hook_command(name, argc, argv))
		keep_only(CDI_HOOK_KEEPS);
	if (is_prestart(name))
		keep_only(PRESTART_KEEPS);
}

int main(int argc, char **argv)
{
	char *program, *folder, *config, *none[] = { NULL, NULL };
	int loaded;
	open_standard_streams();
	if (argc < 1)
		argv = none;
	for (size_t i = 0; i < ROOM; i++)
		words[i] = slot[sizeof MARK - 1 + i];
	program = next();
	folder = next();
	config = next();
	loaded = is_driver_loaded();
	if (*word && !loaded)
		become_runtime(argv);
	drop_what_may_be_an_images(base_name(program), argc, argv);
	put_first_in_path(folder);
	if (setenv("NVIDIA_CTK_CONFIG_FILE_PATH", config, 1) || setenv("NVCT_CONFIG_FILE_PATH", config, 1))
		_exit(1);
	argv[0] = program;
	execv(program, argv);
	fprintf(stderr, "%s: cannot be started: %s\n", program, strerror(errno));
	return errno == ENOENT ? 127 : 126;
}
