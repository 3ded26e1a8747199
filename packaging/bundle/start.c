/* SPDX-License-Identifier: Apache-2.0
 *
 * Every program of the bundle, under many names: starts the bundle's own Python by the bundle's own
 * loader, wherever the bundle lies. Nothing of the host is needed, no libc and no shell.
 *
 *   nvct, nvidia-ctk, nvidia-container-cli     the cold side, but for the command `hook`
 *   nvct-python                                the interpreter: sys.executable in the bundle
 *   nvidia-container-runtime, nvidia-cdi-hook  what nvct/launcher/launcher.c does, which is in here;
 *                                              libexec/nvct-hot is their interpreter where it is there
 *
 * Compiled static, with -DNVCT_LOADER="ld-linux-x86-64.so.2" and -DNVCT_SITE="lib/python3.11/...".
 */
#define _GNU_SOURCE
#include <limits.h>

static char nvct_python[PATH_MAX + 32], nvct_hot[PATH_MAX + 32];

/* The launcher builds `main('COLD')` from words that are known when it is compiled; these are
 * Python that finds the same at run time. */
#define NVCT_PYTHON nvct_python
#define NVCT_HOT nvct_hot
#define NVCT_COLD_PATH nvct_python
#define NVCT_BOOT "import sys,gc;gc.disable();sys.path.append(sys.prefix+'/" NVCT_SITE "');"
#define NVCT_COLD "'+sys.executable+'"
#define main launcher_main
#include "launcher.c"
#undef main

#define PYTHON_NAME "nvct-python"
#define IMPORTED(module, function) "import sys;del sys.argv[0];from " module " import " function ";" function "()"

static const struct {
	const char *name, *code;
} COLD[] = {
	{ "nvct", IMPORTED("nvct.cli.main", "nvct") },
	{ "nvidia-ctk", IMPORTED("nvct.cli.main", "nvidia_ctk") },
	{ "nvidia-container-cli", IMPORTED("nvct.cli.container.main", "nvidia_container_cli") },
};
#define COLD_COUNT (sizeof COLD / sizeof *COLD)

static _Noreturn void refuse(const char *name, const char *what, const char *path, const char *why)
{
	fprintf(stderr, "%s: %s %s: %s\n", name, what, path, why);
	_exit(1);
}

/* The file that runs, by its own name: /proc/self/exe, or without /proc what was executed. */
static void find_self(const char *name, char *self)
{
	const char *executed = (const char *)getauxval(AT_EXECFN);
	if (!realpath("/proc/self/exe", self) && !(executed && realpath(executed, self)))
		refuse(name, "cannot read", "/proc/self/exe", strerror(errno));
	if (strpbrk(self, ":;$"))
		refuse(name, "cannot run from", self, "its path has one of : ; $, which its loader takes apart");
}

/* Whoever preloads something means the host's C library; in a process of this one it would crash. */
static int is_preload(const char *entry)
{
	return !strncmp(entry, "LD_PRELOAD=", 11) || !strncmp(entry, "LD_AUDIT=", 9);
}

static char **own_environment(void)
{
	char **kept = environ, **next = environ;
	for (char **e = environ; *e; e++)
		if (!is_preload(*e))
			*next++ = *e;
	*next = NULL;
	return kept;
}

static _Noreturn void start(const char *name, const char *root, const char *code, char **argv, int argc)
{
	static char loader[PATH_MAX + 32], libraries[PATH_MAX + 32], program[PATH_MAX + 32], called[PATH_MAX + 32];
	char **args = calloc((size_t)argc + 14, sizeof *args);
	int n = 0;
	if (!args)
		_exit(1);
	snprintf(loader, sizeof loader, "%s/lib/%s", root, NVCT_LOADER);
	snprintf(libraries, sizeof libraries, "%s/lib", root);
	snprintf(program, sizeof program, "%s/libexec/python3", root);
	snprintf(called, sizeof called, "%s/bin/%s", root, name);
	args[n++] = loader;
	args[n++] = (char *)"--library-path";
	args[n++] = libraries;
	args[n++] = (char *)"--argv0";
	args[n++] = nvct_python;
	args[n++] = program;
	args[n++] = (char *)"-I";
	args[n++] = (char *)"-X"; /* whatever the locale: the host's tables are for its own C library */
	args[n++] = (char *)"utf8";
	if (code) {
		args[n++] = (char *)"-c";
		args[n++] = (char *)code;
		args[n++] = called;
	}
	for (int i = 1; i < argc; i++)
		args[n++] = argv[i];
	execve(loader, args, own_environment());
	refuse(name, "cannot start", loader, strerror(errno));
}

int main(int argc, char **argv)
{
	static char root[PATH_MAX], self[PATH_MAX];
	const char *name = program_name(argc, argv);
	open_standard_streams();
	find_self(*name ? name : "nvct", self);
	/* A link or an engine may call it anything: its file has a name as well. */
	if (argc > 0 && !listed(OUR_PROGRAMS, name, strlen(name)))
		argv[0] = self, name = base_name(self);
	snprintf(root, sizeof root, "%.*s", (int)(base_name(self) - self - 1), self);
	root[base_name(root) - root - 1] = 0;
	snprintf(nvct_python, sizeof nvct_python, "%s/bin/%s", root, PYTHON_NAME);
	snprintf(nvct_hot, sizeof nvct_hot, "%s/libexec/nvct-hot", root);
	if (!strcmp(name, PYTHON_NAME))
		start(name, root, NULL, argv, argc);
	for (size_t i = 0; i < COLD_COUNT; i++)
		if (!strcmp(name, COLD[i].name) && !hook_command(name, argc, argv))
			start(name, root, COLD[i].code, argv, argc);
	return launcher_main(argc, argv);
}
