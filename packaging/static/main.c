/* SPDX-License-Identifier: Apache-2.0
 *
 * The hot side in one static file: the launcher (nvct/launcher/launcher.c) with an interpreter behind
 * it that has started already, when the file was built, and has imported every module. It opens no
 * file that is not the job's, reads no PYTHON* variable and needs nothing of the root it runs in.
 *
 * What is linked first is only a seed. It starts the interpreter and writes out the memory of the
 * program's variables and heap, and image.py makes of seed and memory the program: the kernel maps
 * that memory as it maps any program's variables, at the same addresses. So a start costs some page
 * faults instead of 40 million instructions. The C library starts as ever, and sets anew what it
 * keeps of a process; the interpreter keeps nothing of one but what `awake` gives it.
 *
 * Started under a program's name it is that program. As nvct-hot it is started by the launcher,
 * which has read the command line already: nvct-hot --cold INTERPRETER PROGRAM ARGUMENTS.
 */
#define NVCT_EMBEDDED
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <elf.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include "malloc.h"

extern const char nvct_about[]; /* frozen.c */
extern const char *const nvct_modules[];
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden"))); /* the linker's */

#define IMAGE_FD 3 /* build.sh has opened it */

static PyThreadState *image; /* the interpreter in it; NULL in the seed */

/* Where the interpreter of the cold side is; `nvct launchers install --form static` writes its own
 * path over this one. volatile, so that the compiler does not look through it. */
#define COLD_MARK "@nvct cold side@"
#define COLD_ROOM 1024
static volatile const char cold_slot[sizeof COLD_MARK - 1 + COLD_ROOM] = COLD_MARK "/usr/lib/nvct/cold";

static char cold[COLD_ROOM];

/* --- module _nvct: system calls, without dlopen and ctypes -------------------------------------- */

static PyObject *nvct_syscall(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
	long values[7] = { 0 }, result;
	(void)self;
	if (count < 1 || count > 7) {
		PyErr_SetString(PyExc_TypeError, "syscall takes a number and up to six arguments");
		return NULL;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		if (PyBytes_Check(args[i])) {
			values[i] = (long)PyBytes_AS_STRING(args[i]);
		} else if (args[i] != Py_None) {
			values[i] = PyLong_AsLong(args[i]);
			if (values[i] == -1 && PyErr_Occurred())
				return NULL;
		}
	}
	result = syscall(values[0], values[1], values[2], values[3], values[4], values[5], values[6]);
	return PyLong_FromLong(result == -1 ? -errno : result);
}

static PyMethodDef nvct_methods[] = {
	{ "syscall", (PyCFunction)(void (*)(void))nvct_syscall, METH_FASTCALL, NULL },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef nvct_module = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_nvct",
	.m_methods = nvct_methods,
};

PyObject *PyInit__nvct(void)
{
	return PyModule_Create(&nvct_module);
}

/* --- the interpreter ------------------------------------------------------------------------------ */

/* Instead of Modules/getpath.c, which looks for the standard library: everything is frozen in. */
PyStatus _PyConfig_InitPathConfig(PyConfig *config, int compute)
{
	(void)config;
	(void)compute;
	return PyStatus_Ok();
}

/* Module time asks for the local time zone when it is imported: a file of /etc, or the one that TZ
 * names. The hot side writes times in UTC (build.sh has --wrap). */
void __wrap_tzset(void);
struct tm *__wrap_localtime_r(const time_t *at, struct tm *made);

void __wrap_tzset(void)
{
}

struct tm *__wrap_localtime_r(const time_t *at, struct tm *made)
{
	return gmtime_r(at, made);
}

/* The C library remembers where the kernel has put its clock into this process's memory: it must
 * not do that before the image is taken. Its own functions call it by the second name. */
int __real___clock_gettime(clockid_t clock, struct timespec *at);
int __wrap___clock_gettime(clockid_t clock, struct timespec *at);
int __wrap_clock_gettime(clockid_t clock, struct timespec *at);

int __wrap___clock_gettime(clockid_t clock, struct timespec *at)
{
	return image ? __real___clock_gettime(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *at)
{
	return __wrap___clock_gettime(clock, at);
}

/* The interpreter's stack, which it would map. */
static void *stack_new(void *unused, size_t size)
{
	(void)unused;
	return malloc(size);
}

static void stack_free(void *unused, void *stack, size_t size)
{
	(void)unused;
	(void)size;
	free(stack);
}

/* What `python3 -I -S -c` has: no environment, no site, UTF-8 always. */
static PyStatus initialize(void)
{
	char *argv[] = { (char *)"-c" };
	PyObjectArenaAllocator stack = { NULL, stack_new, stack_free };
	PyPreConfig pre;
	PyConfig config;
	PyStatus status;
	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	pre.allocator = PYMEM_ALLOCATOR_MALLOC; /* all that it has is in one heap */
	status = Py_PreInitialize(&pre);
	if (PyStatus_Exception(status))
		return status;
	PyObject_SetArenaAllocator(&stack);
	PyConfig_InitIsolatedConfig(&config);
	config.site_import = 0;
	config.write_bytecode = 0;
	config.install_signal_handlers = 0; /* they would not be in the image */
	config.module_search_paths_set = 1;
	config.use_hash_seed = 1; /* the hashes are: one key for all, see README.md */
	config.hash_seed = 20251121;
	status = PyConfig_SetBytesArgv(&config, 1, argv);
	if (PyStatus_Exception(status))
		return status;
	return Py_InitializeFromConfig(&config);
}

/* Write what the kernel has to map: from the first variable to the end of the heap. */
static int write_image(void)
{
	const Elf64_Phdr *part = (const Elf64_Phdr *)((const char *)&__ehdr_start + __ehdr_start.e_phoff);
	const char *from = NULL, *to = heap_close();
	for (int i = 0; i < __ehdr_start.e_phnum; i++)
		if (part[i].p_type == PT_LOAD && part[i].p_flags & PF_W)
			from = (const char *)part[i].p_vaddr; /* the only one: build.sh has -z norelro */
	while (from && from < to) {
		ssize_t written = write(IMAGE_FD, from, (size_t)(to - from));
		if (written <= 0)
			return 1;
		from += written;
	}
	return !from;
}

/* Counting references would write to each page that is looked at, and each such page has to be
 * copied: immortal objects (PEP 683) are not counted. */
static int keep(PyObject *object, void *unused)
{
	PyTypeObject *type = Py_TYPE(object);
	if (_Py_IsImmortal(object))
		return 0;
	Py_SET_REFCNT(object, _Py_IMMORTAL_REFCNT);
	keep((PyObject *)type, unused);
	if (PyCode_Check(object)) {
		PyCodeObject *code = (PyCodeObject *)object;
		PyObject *parts[] = { code->co_consts, code->co_names, code->co_exceptiontable,
				      code->co_localsplusnames, code->co_localspluskinds, code->co_filename,
				      code->co_name, code->co_qualname, code->co_linetable };
		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
			keep(parts[i], unused);
	} else if (type->tp_traverse) {
		type->tp_traverse(object, keep, unused);
	}
	return 0;
}

static int keep_all(PyObject *object, void *unused)
{
	keep(object, unused);
	return 1;
}

static int make_image(void)
{
	PyStatus status;
	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL); /* who builds may ignore some, and the interpreter writes that down */
	heap_open();
	status = initialize();
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
	PyGC_Disable(); /* looking for cycles costs 2 to 5 % of a create, and exec is the end of all */
	for (const char *const *name = nvct_modules; *name; name++) {
		if (!PyImport_ImportModule(*name)) {
			PyErr_Print();
			return 1;
		}
	}
	PyUnstable_GC_VisitObjects(keep_all, NULL);
	image = PyEval_SaveThread();
	image->native_thread_id = 0; /* the seed's, as are the addresses that old frames have left */
	memset(image->datastack_top, 0, (size_t)((char *)image->datastack_limit - (char *)image->datastack_top));
	return write_image();
}

/* Give the interpreter what is this process's: arguments and environment. */
static int awake(const char *name, char **args, int count, char **env)
{
	PyObject *posix, *variables, *argv, *value;
	environ = env;
	PyEval_RestoreThread(image);
	argv = PyList_New(count + 2);
	posix = PyImport_ImportModule("posix");
	variables = posix ? PyObject_GetAttrString(posix, "environ") : NULL;
	if (!argv || !variables)
		return 0;
	PyList_SET_ITEM(argv, 0, PyUnicode_FromString("-c"));
	for (int i = 0; i <= count; i++) {
		value = PyUnicode_DecodeFSDefault(i ? args[i - 1] : name);
		if (!value)
			return 0;
		PyList_SET_ITEM(argv, i + 1, value);
	}
	PyDict_Clear(variables);
	for (; *env; env++) {
		const char *equals = strchr(*env, '=');
		PyObject *key = equals ? PyBytes_FromStringAndSize(*env, equals - *env) : NULL;
		value = key ? PyBytes_FromString(equals + 1) : NULL;
		if (equals && (!value || !PyDict_SetDefault(variables, key, value)))
			return 0;
	}
	return !PySys_SetObject("argv", argv);
}

static _Noreturn void start_python(const char *entry, const char *name, char **args, int count, char **env)
{
	PyObject *module, *argument, *result = NULL;
	signal(SIGPIPE, SIG_IGN); /* as Python does; before exec both are as they were */
	signal(SIGXFSZ, SIG_IGN);
	if (awake(name, args, count, env)) {
		module = PyImport_ImportModule(entry);
		argument = PyUnicode_DecodeFSDefault(cold);
		result = module && argument ? PyObject_CallMethod(module, "main", "O", argument) : NULL;
	}
	if (!result)
		PyErr_Print();
	_exit(1); /* main does not return */
}

#include "launcher.c"

static const char *entry_of(const char *name)
{
	if (!strcmp(name, "nvidia-cdi-hook"))
		return "nvct.container.cdi_hook.launch";
	if (is_prestart(name))
		return "nvct.container.prestart.launch";
	return "nvct.container.shim.main"; /* under any other name too, as the launcher */
}

int main(int argc, char **argv)
{
	const char *name;
	if (!image)
		return make_image(); /* before the name: where the seed lies is not to be in the image */
	name = program_name(argc, argv);
	for (size_t i = 0; i < sizeof cold; i++)
		cold[i] = cold_slot[sizeof COLD_MARK - 1 + i];
	if (strcmp(name, "nvct-hot"))
		return launch(argc, argv);
	if (argc == 2 && !strcmp(argv[1], "--about")) {
		printf("%s", nvct_about);
		return 0;
	}
	if (argc < 4 || strcmp(argv[1], "--cold") || strlen(argv[2]) >= sizeof cold) {
		fprintf(stderr, "nvct-hot: the launchers start it: nvct-hot --cold PATH PROGRAM ARGUMENTS [usage]\n");
		return 1;
	}
	strcpy(cold, argv[2]);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	start_python(entry_of(argv[3]), argv[3], argv + 4, argc - 4, environ);
}
