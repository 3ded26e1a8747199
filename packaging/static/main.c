/* SPDX-License-Identifier: Apache-2.0
 *
 * The hot side in one static file: the launcher (nvct/launch/launcher.c) with an interpreter behind
 * it whose modules are frozen in. It opens no file that is not the job's, reads no PYTHON* variable
 * and needs nothing of the root it runs in.
 *
 * Started under a program's name it is that program. As nvct-hot it is started by the launcher,
 * which has read the command line already: nvct-hot --cold INTERPRETER PROGRAM ARGUMENTS.
 */
#define NVCT_EMBEDDED
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

extern const char nvct_about[]; /* frozen.c */

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

/* What `python3 -I -S -c` has: a program's own handlers, no environment, no site, UTF-8 always. */
static PyStatus initialize(const char *name, char **args, int count)
{
	char **argv = calloc((size_t)count + 2, sizeof *argv);
	PyPreConfig pre;
	PyConfig config;
	PyStatus status;
	if (!argv)
		return PyStatus_NoMemory();
	argv[0] = (char *)"-c";
	argv[1] = (char *)name;
	memcpy(argv + 2, args, (size_t)count * sizeof *argv);
	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	status = Py_PreInitialize(&pre);
	if (PyStatus_Exception(status))
		return status;
	PyConfig_InitIsolatedConfig(&config);
	config.site_import = 0;
	config.write_bytecode = 0;
	config.install_signal_handlers = 1;
	config.module_search_paths_set = 1;
	status = PyConfig_SetBytesArgv(&config, count + 2, argv);
	if (PyStatus_Exception(status))
		return status;
	return Py_InitializeFromConfig(&config);
}

static _Noreturn void start_python(const char *entry, const char *name, char **args, int count, char **env)
{
	PyObject *module, *argument, *result;
	PyStatus status;
	environ = env;
	status = initialize(name, args, count);
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
	PyGC_Disable(); /* looking for cycles costs 2 to 5 % of a create, and exec is the end of all */
	module = PyImport_ImportModule(entry);
	argument = PyUnicode_DecodeFSDefault(cold);
	result = module && argument ? PyObject_CallMethod(module, "main", "O", argument) : NULL;
	if (!result)
		PyErr_Print();
	_exit(1); /* main does not return */
}

#include "launcher.c"

static const char *entry_of(const char *name)
{
	if (!strcmp(name, "nvidia-cdi-hook"))
		return "nvct.hook.launch";
	if (!strcmp(name, "nvidia-container-runtime-hook") || !strcmp(name, "nvidia-container-toolkit"))
		return "nvct.prestart.launch";
	return "nvct.shim.main"; /* under any other name too, as the launcher */
}

int main(int argc, char **argv)
{
	const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
	name = name ? name + 1 : argc > 0 ? argv[0] : "";
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
