/* SPDX-License-Identifier: Apache-2.0
 *
 * Which program this is, and which variables a hook gets. launcher.c, packaging/bundle/start.c and
 * packaging/bundle/wrapper.c include it; all three are linked static.
 *
 * An engine that reads CDI specs itself starts a hook without `env` with the image's environment
 * (CVE-2025-23266). So the first program that runs has no dynamic loader, and it passes on only the
 * variables that are listed here.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

static const char OUR_PROGRAMS[] =
	"nvidia-cdi-hook\0nvidia-ctk\0nvct\0nvidia-container-runtime-hook\0nvidia-container-toolkit\0"
	"nvidia-container-runtime\0nvidia-container-runtime.cdi\0nvidia-container-runtime.legacy\0"
	"nvidia-container-cli\0nvct-python\0";

/* Whether a name is in a list of strings; an empty string ends the list. */
static inline int listed(const char *list, const char *name, size_t size)
{
	for (const char *p = list; *p; p += strlen(p) + 1)
		if (strlen(p) == size && !memcmp(p, name, size))
			return 1;
	return 0;
}

static inline const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* Return the program of ours that a file name stands for, NULL if none. A suffix does not count:
 * nvidia-ctk.real is nvidia-ctk, because the incumbent's installer renames programs like that. */
static inline const char *our_program(const char *name)
{
	const char *found = NULL;
	for (const char *p = OUR_PROGRAMS; *p; p += strlen(p) + 1) {
		size_t size = strlen(p);
		if (!strncmp(name, p, size) && (!name[size] || name[size] == '.') && (!found || size > strlen(found)))
			found = p;
	}
	return found;
}

/* Return the program's name: that of the executed file, or of the file to which it is a link, else
 * argv[0], which for a hook is the first of the spec's args. */
static inline const char *program_name(int argc, char **argv)
{
	static char self[4096];
	const char *executed = (const char *)getauxval(AT_EXECFN), *name = argc > 0 ? base_name(argv[0]) : "";
	const char *found = executed ? our_program(base_name(executed)) : NULL;
	if (!found && readlink("/proc/self/exe", self, sizeof self - 1) > 0)
		found = our_program(base_name(self));
	if (!found)
		found = our_program(name);
	return found ? found : name;
}

/* Open /dev/null for each closed standard stream: else the next opened file would take its place. */
static inline void open_standard_streams(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			_exit(1);
}

static inline int is_prestart(const char *name)
{
	return !strcmp(name, "nvidia-container-runtime-hook") || !strcmp(name, "nvidia-container-toolkit");
}

static inline int is_command_line(const char *name)
{
	return !strcmp(name, "nvidia-ctk") || !strcmp(name, "nvct");
}

/* Return the index of the command `hook` of nvidia-ctk and nvct, 0 if the command is another one. After an
 * unknown option, which may take a value, the command's position is unknown: any word `hook` counts. */
static inline int hook_command(const char *program, int argc, char **argv)
{
	static const char SWITCHES[] = "debug\0d\0quiet\0q\0help\0h\0version\0v\0";
	int unknown = 0;
	for (int i = 1; is_command_line(program) && i < argc; i++) {
		const char *name = argv[i] + strspn(argv[i], "-");
		if (argv[i][0] != '-') {
			if (!strcmp(argv[i], "hook"))
				return i;
			if (!unknown)
				return 0;
		} else if (!strcmp(name, "config")) {
			i++;
		} else if (*name && strncmp(name, "config=", 7)) {
			unknown |= !listed(SWITCHES, name, strcspn(name, "="));
		}
	}
	return 0;
}

/* Turn the arguments of `nvidia-ctk OPTIONS hook ARGUMENTS` into those of nvidia-cdi-hook; return
 * their number. */
static inline int as_cdi_hook(int argc, char **argv, int command)
{
	int n = 1;
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i] + strspn(argv[i], "-");
		if (i < command && !strcmp(name, "config"))
			i++;
		else if (i != command && strcmp(argv[i], "--") && (i > command || strncmp(name, "config=", 7)))
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	return n;
}

static inline int is_kept(const char *entry, const char *names)
{
	for (; *names; names += strlen(names) + 1)
		if (!strncmp(entry, names, strlen(names)))
			return 1;
	return 0;
}

/* Remove from the environment all entries except those that begin with one of the names. */
static inline void keep_only(const char *names)
{
	char **next = environ;
	for (char **e = environ; *e; e++)
		if (is_kept(*e, names))
			*next++ = *e;
	*next = NULL;
}

/* A hook of a CDI spec has two switches. */
#define CDI_HOOK_KEEPS "NVIDIA_CTK_DEBUG=\0NVIDIA_CTK_QUIET=\0"

/* The prestart hook runs in the engine's environment. As a createContainer hook it may have the image's:
 * nvct/container/prestart then reads none of these. */
#define PRESTART_KEEPS \
	"NVIDIA_CTK_\0NVCT_\0PATH=\0HOME=\0XDG_CONFIG_HOME=\0XDG_DATA_DIRS=\0XDG_RUNTIME_DIR=\0"
