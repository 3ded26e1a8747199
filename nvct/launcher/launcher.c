/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher: hands a command line over to the low-level runtime without starting Python, unless it
 * creates a container whose config.json contains one of the words of GPU requests.
 *
 * It decides nothing about GPUs. It reads launcher.conf, which nvct compiles from config.toml; if that
 * file is missing, stale or not ours, or anything is unusual, Python takes over. It parses the command
 * line as nvct/oci/argv.py does; the tests run the same table of cases against both.
 *
 * Compiled with -DNVCT_PYTHON="/usr/bin/python3" -DNVCT_COLD="/venv/bin/python" and -DNVCT_BOOT, the
 * Python code that makes nvct importable (in install.py). With -DNVCT_HOT="/usr/lib/nvct/nvct-hot" it
 * prefers that static executable if it exists, and if NVCT_HOT_DIGEST is its digest.
 * packaging/static/main.c includes this file and has its own interpreter (NVCT_EMBEDDED).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define CONF_LIMIT 65536
#define MAX_WORDS 64
#define MAX_SOURCES 256
#define CGROUP2_MAGIC 0x63677270 /* linux/magic.h */
#define PROC_MAGIC 0x9fa0
#ifndef NVCT_CONFIG
#define NVCT_CONFIG "/etc/nvidia-container-runtime/config.toml"
#endif

#include "hook.h"

static char *words[MAX_WORDS];
static size_t word_sizes[MAX_WORDS];
static int word_count;
static char *runtimes[16];
static int runtime_count;
static int checks_host;
static char conf[CONF_LIMIT + 1];

/* --- the way to Python ------------------------------------------------------------------------- */

#ifdef NVCT_EMBEDDED
#define BOOT(module) module
#define NVCT_COLD_PATH cold
#else
#ifndef NVCT_COLD_PATH
#define NVCT_COLD_PATH NVCT_COLD /* packaging/bundle/start.c finds it at run time */
#endif
#define BOOT(module) NVCT_BOOT "from " module " import main;main('" NVCT_COLD "')"

#ifdef NVCT_HOT
#ifdef NVCT_HOT_DIGEST
/* Whether nvct-hot was built from the sources of this launcher: its last bytes are their digest. */
static int is_of_our_sources(void)
{
	char said[sizeof NVCT_HOT_DIGEST - 1];
	int same, fd = open(NVCT_HOT, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	same = lseek(fd, -(off_t)sizeof said, SEEK_END) >= 0 && read(fd, said, sizeof said) == (ssize_t)sizeof said &&
	       !memcmp(said, NVCT_HOT_DIGEST, sizeof said);
	close(fd);
	return same;
}
#else
#define is_of_our_sources() 1
#endif

/* Become nvct-hot, which needs no other Python. Return if it is missing, for another machine or of another
 * nvct; the caller then starts the interpreter, which imports the same modules. */
static void try_hot(const char *name, char **args, int count, char **env)
{
	char **argv = calloc((size_t)count + 5, sizeof *argv);
	int n = 0;
	if (!argv || !is_of_our_sources())
		return;
	argv[n++] = (char *)NVCT_HOT;
	argv[n++] = (char *)"--cold";
	argv[n++] = (char *)NVCT_COLD_PATH;
	argv[n++] = (char *)name;
	for (int i = 0; i < count; i++)
		argv[n++] = args[i];
	execve(NVCT_HOT, argv, env);
	free(argv);
}
#endif

static _Noreturn void start_python(const char *boot, const char *name, char **args, int count, char **env)
{
	char **argv = calloc((size_t)count + 7, sizeof *argv);
	int n = 0;
#ifdef NVCT_HOT
	try_hot(name, args, count, env);
#endif
	if (!argv)
		_exit(1);
	argv[n++] = (char *)NVCT_PYTHON;
	argv[n++] = (char *)"-I";
	argv[n++] = (char *)"-S";
	argv[n++] = (char *)"-c";
	argv[n++] = (char *)boot;
	argv[n++] = (char *)name;
	for (int i = 0; i < count; i++)
		argv[n++] = args[i];
	execve(NVCT_PYTHON, argv, env);
	fprintf(stderr, "%s: cannot start %s: %s; run nvct launchers install again [host]\n", name, NVCT_PYTHON,
		strerror(errno));
	_exit(1);
}
#endif

/* Become the command line nvct or nvidia-ctk, in the interpreter of the cold side. */
static _Noreturn void start_cold(const char *name, int argc, char **argv)
{
	char **args = calloc((size_t)argc + 5, sizeof *args);
	int n = 0;
	if (!args)
		_exit(1);
	args[n++] = (char *)NVCT_COLD_PATH;
	args[n++] = (char *)"-I";
	args[n++] = (char *)"-m";
	args[n++] = (char *)"nvct.cli";
	args[n++] = (char *)name;
	for (int i = 1; i < argc; i++)
		args[n++] = argv[i];
	execv(NVCT_COLD_PATH, args);
	fprintf(stderr, "%s: cannot start %s: %s; run nvct launchers install again [host]\n", name, NVCT_COLD_PATH,
		strerror(errno));
	_exit(1);
}

/* --- the command line: see nvct/oci/argv.py ---------------------------------------------------- */

struct invocation {
	const char *command, *bundle, *config;
	int sure, version, help;
};

static const char GLOBAL_VALUE[] = "log\0log-format\0root\0criu\0rootless\0cgroup-manager\0log-level\0";
static const char GLOBAL_SWITCH[] = "debug\0systemd-cgroup\0help\0h\0version\0v\0";
static const char CREATE_VALUE[] =
	"bundle\0b\0config\0f\0console-socket\0pidfd-socket\0pid-file\0preserve-fds\0"
	"image-path\0work-path\0manage-cgroups-mode\0empty-ns\0lsm-profile\0lsm-mount-context\0";
static const char OFF[] = "0\0f\0F\0false\0False\0FALSE\0";

static int is_create(const char *command)
{
	return command && listed("create\0run\0restore\0", command, strlen(command));
}

/* Whether a switch that is given is on: without a value, or not =false. */
static int on(const char *value)
{
	return !value || !listed(OFF, value, strlen(value));
}

static void parse_create(int argc, char **argv, int i, struct invocation *said)
{
	while (i < argc) {
		const char *arg = argv[i++], *name, *value;
		size_t size;
		if (!strcmp(arg, "--"))
			return;
		if (arg[0] != '-' || !arg[1])
			continue;
		name = arg[1] == '-' ? arg + 2 : arg + 1;
		value = strchr(name, '=');
		size = value ? (size_t)(value - name) : strlen(name);
		if (value)
			value++;
		if (!listed(CREATE_VALUE, name, size)) {
			if (listed("help\0h\0", name, size))
				said->help = on(value);
			if ((arg[1] != 'b' && arg[1] != 'f') || !arg[2])
				continue;
			size = 1; /* crun takes -bDIR; runc -bundle DIR */
			value = arg + 2;
		}
		if (!value) {
			if (i >= argc)
				return;
			value = argv[i++];
		}
		if ((size == 6 && !memcmp(name, "bundle", 6)) || (size == 1 && *name == 'b'))
			said->bundle = value;
		else if ((size == 6 && !memcmp(name, "config", 6)) || (size == 1 && *name == 'f'))
			said->config = value;
	}
}

static void parse(int argc, char **argv, struct invocation *said)
{
	int i = 1;
	said->sure = 1;
	while (i < argc) {
		const char *arg = argv[i++], *name, *value;
		size_t size;
		if (!strcmp(arg, "--"))
			break;
		if (arg[0] != '-' || !arg[1]) {
			i--;
			break;
		}
		name = arg[1] == '-' ? arg + 2 : arg + 1;
		value = strchr(name, '=');
		size = value ? (size_t)(value - name) : strlen(name);
		if (value)
			value++;
		if (listed(GLOBAL_SWITCH, name, size)) {
			if (*name == 'v')
				said->version = on(value);
			else if (*name == 'h')
				said->help = on(value);
		} else if (!listed(GLOBAL_VALUE, name, size)) {
			said->sure = 0; /* Python decides */
			return;
		} else if (!value) {
			i++;
		}
	}
	if (i < argc)
		said->command = argv[i];
	if (is_create(said->command))
		parse_create(argc, argv, i + 1, said);
}

/* --- launcher.conf ------------------------------------------------------------------------------- */

/* Whether the host's config.toml may have a policy; callers then cannot choose another file: `without_choice` in
 * nvct/config/model.py. */
static int keeps_policy(void)
{
	static char text[1 << 20];
	struct stat s;
	ssize_t size;
	int fd;
	if (stat("/", &s) || s.st_uid != geteuid())
		return 0;
	fd = open(NVCT_CONFIG, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno != ENOENT && errno != ENOTDIR;
	size = read(fd, text, sizeof text);
	close(fd);
	/* A file that is larger than nvct reads may have a policy at its end. */
	return size < 0 || size == sizeof text || memmem(text, (size_t)size, "policy", 6);
}

/* Return the value of a variable by which a caller chooses another config.toml or launcher.conf. NULL if it has none,
 * or if a policy forbids the choice: Podman starts its runtime with its caller's environment. */
static const char *chosen(const char *name)
{
	const char *value = getenv(name);
	return value && *value && !keeps_policy() ? value : NULL;
}

static int config_is(const char *path, const char *signature)
{
	const char *named = chosen("NVIDIA_CTK_CONFIG_FILE_PATH"), *xdg = chosen("XDG_CONFIG_HOME");
	char expected[4096], now[128];
	struct stat s;
	int n;
	if (named)
		n = snprintf(expected, sizeof expected, "%s", named);
	else
		n = snprintf(expected, sizeof expected, "%s/nvidia-container-runtime/config.toml",
			     xdg ? xdg : ""); /* the XDG specification requires an absolute path */
	if (!named && (!xdg || *xdg != '/' || stat(expected, &s))) /* Podman 5 names a folder without the file */
		n = snprintf(expected, sizeof expected, "%s", NVCT_CONFIG);
	if (n < 0 || (size_t)n >= sizeof expected || strcmp(path, expected))
		return 0;
	if (stat(expected, &s))
		return !strcmp(signature, "absent");
	snprintf(now, sizeof now, "%llu %llu %lld %lld %u", (unsigned long long)s.st_dev,
		 (unsigned long long)s.st_ino, (long long)s.st_size,
		 (long long)s.st_mtim.tv_sec * 1000000000LL + s.st_mtim.tv_nsec, (unsigned)s.st_uid);
	return !strcmp(signature, now);
}

static int read_conf(void)
{
	const char *dir = chosen("NVCT_RUN_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
	char path[4096];
	struct stat s;
	ssize_t size;
	int fd, conf_fd;
	if (!dir) {
		dir = "/run/nvct";
		/* This user does not own /, such as root in the user namespace of a rootless engine. */
		if (xdg && *xdg && !stat("/", &s) && s.st_uid != geteuid()) {
			if ((size_t)snprintf(path, sizeof path, "%s/nvct", xdg) >= sizeof path)
				return 0;
			dir = path;
		}
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (fstat(fd, &s) || s.st_uid != geteuid() || (s.st_mode & 077))
		return 0;
	conf_fd = openat(fd, "launcher.conf", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	close(fd);
	if (conf_fd < 0)
		return 0;
	if (fstat(conf_fd, &s) || s.st_uid != geteuid() || (s.st_mode & 022) || !S_ISREG(s.st_mode) ||
	    s.st_size > CONF_LIMIT)
		return 0;
	size = read(conf_fd, conf, CONF_LIMIT);
	close(conf_fd);
	return size > 0 && size == s.st_size;
}

static int parse_conf(void)
{
	int first = 1, fresh = 0, whole = 0;
	for (char *line = conf, *next; *line; line = next) {
		char *value, *rest;
		next = strchr(line, '\n');
		if (!next)
			return 0;
		*next++ = 0;
		if (first) {
			if (strcmp(line, "nvct-launcher 2"))
				return 0;
			first = 0;
			continue;
		}
		if (!strcmp(line, "end")) {
			whole = 1;
			break;
		}
		value = strchr(line, '\t');
		if (!value)
			return 0;
		*value++ = 0;
		if (!strcmp(line, "config")) {
			rest = strchr(value, '\t');
			if (!rest)
				return 0;
			*rest++ = 0;
			fresh = config_is(value, rest);
			if (!fresh)
				return 0;
		} else if (!strcmp(line, "runtime") && runtime_count < 16) {
			runtimes[runtime_count++] = value;
		} else if (!strcmp(line, "word") && word_count < MAX_WORDS && *value) {
			word_sizes[word_count] = strlen(value);
			words[word_count++] = value;
		} else if (!strcmp(line, "host")) {
			checks_host = 1;
		} else {
			return 0;
		}
	}
	return whole && fresh && runtime_count && word_count;
}

/* --- the low-level runtime ------------------------------------------------------------------------- */

static int executable(const char *path)
{
	struct stat s;
	return !stat(path, &s) && S_ISREG(s.st_mode) && !access(path, X_OK);
}

static int in_dirs(const char *dirs, const char *name, char *found, size_t room)
{
	while (*dirs) {
		size_t size = strcspn(dirs, ":");
		if (size && (size_t)snprintf(found, room, "%.*s/%s", (int)size, dirs, name) < room &&
		    executable(found))
			return 1;
		dirs += size;
		if (*dirs)
			dirs++;
	}
	return 0;
}

static void hand_over(char **argv)
{
	static char found[4096];
	const char *path = getenv("PATH");
	for (int i = 0; i < runtime_count; i++) {
		const char *name = runtimes[i];
		if (strchr(name, '/')) {
			if (!executable(name))
				continue;
			snprintf(found, sizeof found, "%s", name);
		} else if (!(path && in_dirs(path, name, found, sizeof found)) &&
			   !in_dirs("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", name, found,
				    sizeof found)) {
			continue;
		}
		argv[0] = found;
		execv(found, argv);
		return; /* Python tries again and says why */
	}
}

/* --- the scan of config.json ------------------------------------------------------------------------- */

/* Whether a text may contain a request: one of the words, or an escape that could hide one. */
static int may_request(const char *text, size_t size)
{
	unsigned char first[256] = { 0 };
	const char *end = text + size;
	for (int i = 0; i < word_count; i++)
		first[(unsigned char)*words[i]] = 1;
	first['\\'] = 1;
	for (const char *p = text; p < end; p++) {
		size_t left = (size_t)(end - p);
		if (!first[(unsigned char)*p])
			continue;
		if (*p == '\\') {
			if (left > 5 && p[1] == 'u' && p[2] == '0' && p[3] == '0' && strncasecmp(p + 4, "3c", 2) &&
			    strncasecmp(p + 4, "3e", 2) && strncmp(p + 4, "26", 2))
				return 1;
			continue;
		}
		for (int i = 0; i < word_count; i++)
			if (word_sizes[i] <= left && *words[i] == *p && !memcmp(p, words[i], word_sizes[i]))
				return 1;
	}
	return 0;
}

/* Whether a path is a folder, or is below it. */
static int holds(const char *folder, const char *path)
{
	size_t size = strlen(folder);
	return !strncmp(folder, path, size) && (!path[size] || path[size] == '/' || folder[size - 1] == '/');
}

static int overlap(const char *a, const char *b)
{
	return holds(a, b) || holds(b, a);
}

/* File systems that show the host's control groups, processes or kernel settings. */
static const char SHOWN[] = "cgroup\0cgroup2\0proc\0sysfs\0debugfs\0tracefs\0configfs\0binfmt_misc\0";

/* Read a mount's device number, its target, still escaped, and its type; return 0 if one is missing. */
static int parse_mount(const char *line, char *numbers, char *point, char **type)
{
	*type = strstr(line, " - ");
	return *type && sscanf(line, "%*s %*s %31s %*s %4095s", numbers, point) == 2;
}

/* Whether one of these real paths is, holds or lies in a mount that shows the host, or in the container's root, which
 * is the first path. The root counts under its own name and wherever else its file system is mounted. */
static int any_shows_host(char **paths, int count)
{
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *type, point[4096], numbers[32], of_root[32] = "";
	size_t room = 0, depth = 0;
	int shows = !mounts || strpbrk(paths[0], " \t\n\\");
	while (!shows && getline(&line, &room, mounts) > 0) {
		shows = !parse_mount(line, numbers, point, &type);
		if (!shows && holds(point, paths[0]) && strlen(point) >= depth) {
			depth = strlen(point);
			strcpy(of_root, numbers);
		}
	}
	for (int i = 1; i < count; i++)
		shows |= overlap(paths[i], paths[0]);
	if (!shows)
		rewind(mounts);
	while (!shows && getline(&line, &room, mounts) > 0) {
		int is_shown, is_other;
		shows = !parse_mount(line, numbers, point, &type);
		is_shown = !shows && listed(SHOWN, type + 3, strcspn(type + 3, " "));
		is_other = !shows && !strcmp(numbers, of_root) && !holds(point, paths[0]);
		for (int i = 0; i < count; i++)
			shows |= (is_shown || (is_other && i)) && (strchr(point, '\\') || overlap(paths[i], point));
	}
	return shows;
}

/* Whether a path leads through a procfs, where "self" means another process to the runtime. */
static int enters_proc(const char *path, int links)
{
	char part[4096], target[4096], next[8192], *slash;
	struct statfs fs;
	const char *end = path;
	while (*(end += strspn(end, "/"))) {
		ssize_t size;
		end += strcspn(end, "/");
		if ((size_t)snprintf(part, sizeof part, "%.*s", (int)(end - path), path) >= sizeof part)
			return 1;
		if (statfs(part, &fs))
			return 0; /* realpath says why */
		if (fs.f_type == PROC_MAGIC)
			return 1;
		size = readlink(part, target, sizeof target - 1);
		if (size < 0)
			continue;
		target[size] = 0;
		slash = strrchr(part, '/');
		if (slash)
			*slash = 0;
		snprintf(next, sizeof next, "%s/%s", *target == '/' ? "" : slash ? part : ".", target);
		if (!links || strlen(next) >= sizeof part || enters_proc(next, links - 1))
			return 1;
	}
	return 0;
}

/* Whether a number after a key has this many digits or more. */
static int has_long_number(const char *text, size_t size, const char *key, int digits)
{
	const char *p = text, *end = text + size;
	while ((p = memmem(p, (size_t)(end - p), key, strlen(key)))) {
		int count = 0;
		for (p += strlen(key); p < end && *p >= '0' && *p <= '9'; p++)
			if (++count == digits)
				return 1;
	}
	return 0;
}

/* Whether a device rule allows more than one type of nodes: engines write its members in this order. */
static int has_odd_rule(const char *text, size_t size)
{
	static const char allow[] = "\"allow\":true";
	const char *p = text, *end = text + size;
	while ((p = memmem(p, (size_t)(end - p), allow, sizeof allow - 1))) {
		p += sizeof allow - 1;
		if (end - p < 11 || (memcmp(p, ",\"type\":\"c\"", 11) && memcmp(p, ",\"type\":\"b\"", 11)))
			return 1;
	}
	return 0;
}

/* Whether an array of config.json has an item. Only engines write the keys of arrays: a user's text is in strings,
 * where quotes are escaped, and in maps of strings, such as annotations. In doubt the array does not have it. */
static int array_has(const char *text, size_t size, const char *key, const char *item)
{
	const char *array = memmem(text, size, key, strlen(key)), *end = text + size, *close;
	if (!array)
		return 0;
	array += strlen(key);
	if (memmem(array, (size_t)(end - array), key, strlen(key)))
		return 0;
	close = memchr(array, ']', (size_t)(end - array));
	return close && memmem(array, (size_t)(close - array), item, strlen(item));
}

#define NAMESPACES "\"namespaces\":["
#define DESTINATION "\"destination\":\""
#define ROOT "\"root\":{\"path\":\""
#define GROUP "\"cgroupsPath\":\""
#define REFUSAL "{\"allow\":false,\"access\":\"rwm\"}"

/* File systems that runtimes mount for a container. */
static const char OWN[] = "proc\0tmpfs\0devpts\0sysfs\0mqueue\0cgroup\0cgroup2\0";

/* Return the text after a key, in a range; NULL if it is not there. */
static const char *after(const char *text, const char *end, const char *key)
{
	const char *found = memmem(text, (size_t)(end - text), key, strlen(key));
	return found ? found + strlen(key) : NULL;
}

/* Find the string that follows `before`; it may have escapes. Return the text after it, NULL without one. */
static const char *read_string(const char *text, const char *end, const char *before, const char **string, size_t *size)
{
	size_t skipped = strlen(before);
	if (!text || (size_t)(end - text) < skipped || memcmp(text, before, skipped))
		return NULL;
	*string = text += skipped;
	for (; text < end && *text != '"'; text++)
		if (*text == '\\')
			text++;
	*size = (size_t)(text - *string);
	return text < end ? text + 1 : NULL;
}

/* Copy a string to `path`; return whether it fits and has no escapes. */
static int copy_string(const char *string, size_t size, char *path, size_t room)
{
	return size < room && (size_t)snprintf(path, room, "%.*s", (int)size, string) == size && !strchr(path, '\\');
}

/* Add the source of a mount to the paths; `text` begins with the mount's destination. Return 0 if Python must decide.
 * Engines write all members, in this order. */
static int add_source(const char *text, const char *end, char **paths, int *count)
{
	const char *target, *type, *source, *option, *next, *before = ",\"options\":[\"";
	size_t target_size, type_size, source_size, size;
	char path[4096];
	int is_bind, is_read_only = 0, is_writable = 0;
	text = read_string(text, end, "", &target, &target_size);
	text = read_string(text, end, ",\"type\":\"", &type, &type_size);
	text = read_string(text, end, ",\"source\":\"", &source, &source_size);
	is_bind = text && listed("bind\0", type, type_size);
	for (; (next = read_string(text, end, before, &option, &size)); text = next, before = ",\"") {
		is_bind |= listed("bind\0rbind\0", option, size);
		is_read_only |= listed("ro\0rro\0", option, size);
		is_writable |= listed("rw\0rrw\0", option, size);
		if (listed("remount\0slave\0rslave\0shared\0rshared\0", option, size))
			return 0;
	}
	if (!text || text == end || (*text != ']' && *text != '}') ||
	    !copy_string(source, source_size, path, sizeof path) || *count == MAX_SOURCES)
		return 0;
	if (!is_bind && (!listed(OWN, type, type_size) || /* only /proc itself is masked */
			 (listed("proc\0", type, type_size) && !listed("/proc\0", target, target_size)) ||
			 (listed("sysfs\0", type, type_size) && (is_writable || !is_read_only))))
		return 0;
	if (*path != '/')
		return !is_bind; /* such as proc and tmpfs; runtimes take the relative source of a bind from their own folders */
	if (enters_proc(path, 40))
		return 0;
	paths[*count] = realpath(path, NULL);
	if (!paths[*count])
		return errno == ENOENT || errno == ENOTDIR; /* the runtime reports it */
	(*count)++;
	return 1;
}

/* Whether the container's control group, or one above it, may belong to another user than root, who can then move its
 * processes out (version 2), or may be any folder: crun follows `..`. */
static int has_users_group(const char *text, const char *end)
{
	char path[4096] = "/sys/fs/cgroup/";
	size_t size, root = strlen(path);
	struct stat s;
	text = after(text, end, GROUP);
	if (!read_string(text, end, "", &text, &size) || !copy_string(text, size, path + root, sizeof path - root) ||
	    after(text, end, GROUP) || strstr(path, ".."))
		return 1;
	for (char *p = path + root, *stop = p + size; p < stop; *p++ = '/') {
		p += strcspn(p, "/");
		*p = 0;
		if (stat(path, &s))
			return 0;
		if (s.st_uid)
			return 1;
	}
	return 0;
}

/* Whether root in the container may reach the host's control groups, processes or settings, so that
 * nvct/container/host_view.py must decide: by the host's namespaces, or by mounts, whatever the engine calls them. */
static int sees_host(const char *text, size_t size, const char *bundle)
{
	const char *end = text + size, *mount = text, *root = after(text, end, ROOT);
	char path[4096], folder[8192], *paths[MAX_SOURCES];
	struct statfs fs;
	size_t length;
	int count = 0;
	if (!array_has(text, size, "\"readonlyPaths\":[", "\"/proc/sys\"") ||
	    !array_has(text, size, "\"readonlyPaths\":[", "\"/proc/bus\"") || has_odd_rule(text, size) ||
	    has_long_number(text, size, "\"major\":", 4) || has_long_number(text, size, "\"minor\":", 8) ||
	    !after(text, end, REFUSAL) || has_users_group(text, end))
		return 1; /* crun cuts numbers to 32 bits, and refuses nothing without such a rule */
	if (!array_has(text, size, NAMESPACES, "{\"type\":\"pid\"}") ||
	    array_has(text, size, NAMESPACES, "{\"type\":\"cgroup\",") ||
	    (!array_has(text, size, NAMESPACES, "{\"type\":\"cgroup\"}") && !statfs("/sys/fs/cgroup", &fs) &&
	     fs.f_type == CGROUP2_MAGIC))
		return 1;
	if (!read_string(root, end, "", &root, &length) || !copy_string(root, length, path, sizeof path) ||
	    after(root, end, ROOT))
		return 1;
	if (*path == '/')
		snprintf(folder, sizeof folder, "%s", path);
	else
		snprintf(folder, sizeof folder, "%s/%s", bundle && *bundle ? bundle : ".", path);
	if (enters_proc(folder, 40) || !(paths[count++] = realpath(folder, NULL)))
		return 1;
	while ((mount = after(mount, end, DESTINATION)))
		if (!add_source(mount, end, paths, &count))
			return 1;
	return any_shows_host(paths, count);
}

/* Read a file: cheaper than a mapping, and no SIGBUS if another process truncates it. NULL if it is not regular. */
static char *text_of(const char *path, size_t *size)
{
	struct stat s;
	char *text = NULL;
	off_t count = 0;
	ssize_t part;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &s) && S_ISREG(s.st_mode) && s.st_size > 0 && s.st_size <= (64 << 20))
		text = malloc((size_t)s.st_size);
	while (text && count < s.st_size && (part = read(fd, text + count, (size_t)(s.st_size - count))) > 0)
		count += part;
	close(fd);
	if (!text || count != s.st_size)
		return NULL;
	*size = (size_t)count;
	return text;
}

static int file_may_request(const struct invocation *said)
{
	char path[4096], *text;
	size_t size = 0;
	int n;
	if (said->config && *said->config && strcmp(said->config, "config.json"))
		n = snprintf(path, sizeof path, "%s", said->config);
	else
		n = snprintf(path, sizeof path, "%s%sconfig.json", said->bundle && *said->bundle ? said->bundle : "",
			     said->bundle && *said->bundle ? "/" : "");
	if (n < 0 || (size_t)n >= sizeof path)
		return 1;
	text = text_of(path, &size);
	return !text || may_request(text, size) || (checks_host && sees_host(text, size, said->bundle));
}

/* Whether an exec may add CAP_SYS_ADMIN, or an update device rules, so that nvct/container/shim/running.py must decide.
 * Engines write both into files. */
static int may_change_running(const char *command, char **args)
{
	int is_exec = !strcmp(command, "exec");
	const char *files = is_exec ? "process\0p\0" : "resources\0r\0", *word = is_exec ? "CAP_SYS_ADMIN" : "\"devices\"";
	if (!is_exec && strcmp(command, "update"))
		return 0;
	for (; *args; args++) {
		const char *name = *args, *path;
		char *text;
		size_t length, size = 0;
		if (*name != '-')
			continue;
		name += name[1] == '-' ? 2 : 1;
		length = strcspn(name, "=");
		if (is_exec && listed("cap\0c\0", name, length))
			return 1;
		if (!listed(files, name, length))
			continue;
		path = name[length] ? name + length + 1 : args[1];
		text = path ? text_of(path, &size) : NULL;
		if (!text || memmem(text, size, word, strlen(word)))
			return 1;
	}
	return 0;
}

#ifdef NVCT_EMBEDDED
static int launch(int argc, char **argv)
#else
int main(int argc, char **argv)
#endif
{
	struct invocation said = { 0 };
	const char *name = program_name(argc, argv);
	int command;
	open_standard_streams();
	/* The parent may ignore these signals, as Python does; the container must not inherit that. */
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	command = hook_command(name, argc, argv);
	if (command)
		argc = as_cdi_hook(argc, argv, command);
	else if (is_command_line(name))
		start_cold(name, argc, argv);
	if (command || !strcmp(name, "nvidia-cdi-hook")) {
		keep_only(CDI_HOOK_KEEPS);
		start_python(BOOT("nvct.container.cdi_hook.launch"), "nvidia-cdi-hook", argv + 1, argc - 1, environ);
	}
	if (is_prestart(name)) {
		keep_only(PRESTART_KEEPS);
		start_python(BOOT("nvct.container.prestart.launch"), name, argv + 1, argc - 1, environ);
	}
	parse(argc, argv, &said);
#ifdef NVCT_SHOW_ARGV /* for the tests: show the parsed command line */
	printf("%d|%s|%s|%s|%d|%d\n", said.sure, said.command ? said.command : "", said.bundle ? said.bundle : "",
	       said.config ? said.config : "", said.version, said.help);
	return 0;
#endif
	if (said.sure && !said.version && said.command && read_conf() && parse_conf() &&
	    !(is_create(said.command) && !said.help && file_may_request(&said)) &&
	    !(checks_host && may_change_running(said.command, argv + 1)))
		hand_over(argv);
	if (!*name)
		name = "nvidia-container-runtime";
	start_python(BOOT("nvct.container.shim.main"), name, argv + 1, argc > 0 ? argc - 1 : 0, environ);
}
