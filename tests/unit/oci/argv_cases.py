# SPDX-License-Identifier: Apache-2.0
"""Command lines of runc and crun, and what every reader of them must understand.

One table for `nvct/oci/argv.py` and `nvct/launcher/launcher.c`. What is expected was tried on
runc 1.1.5 and crun 1.8.1, and where both are installed it is tried again: `runc` and `crun` are
the path that each complains about, "" for the working directory, None where the line is no create
at all or is refused. Where the two differ, the expected reading is runc's.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command line.

    Attributes:
        args: what follows the program's name.
        command, bundle, config, log, log_format, debug, version, help, sure: as of Invocation.
        creates: whether a container is made of a bundle.
        runc, crun: the path that the real runtime looks for; None: refused, or no create.
    """

    args: tuple[str, ...]
    command: str = ""
    bundle: str = ""
    config: str = ""
    log: str = ""
    log_format: str = ""
    debug: bool = False
    version: bool = False
    help: bool = False
    sure: bool = True
    creates: bool = False
    runc: str | None = None
    crun: str | None = None

    def __str__(self) -> str:
        return " ".join(arg or "''" for arg in self.args) or "(nothing)"


def _create(line: str, bundle: str = "", **more: object) -> Case:
    """Return a case of create or run; both runtimes behave this way unless noted."""
    values: dict[str, object] = {"command": "create", "creates": True}
    values.update({"runc": bundle, "crun": bundle})
    return Case(args=tuple(line.split()), bundle=bundle, **(values | more))  # type: ignore[arg-type]  # named fields


def _restore(line: str, bundle: str = "") -> Case:
    return _create(line, bundle, command="restore", crun=None)


def _other(line: str, command: str, **more: object) -> Case:
    return Case(args=tuple(line.split()), command=command, **more)  # type: ignore[arg-type]  # named fields


CASES: tuple[Case, ...] = (
    # the path of the bundle
    _create("create id"),
    _create("create --bundle B id", "B"),
    _create("create -bundle B id", "B", crun=None),
    _create("create --bundle=B id", "B"),
    _create("create -bundle=B id", "B", crun="undle=B"),
    _create("create -b B id", "B"),
    _create("create --b B id", "B"),
    _create("create --b=B id", "B"),
    _create("create -b=B id", "B", crun="=B"),
    _create("create -bB id", "B", runc=None),
    _create("create -bB=x id", "B=x", runc=None),
    _create("create --bundle=B=x id", "B=x"),
    _create("create --bundle /no/B/ id", "/no/B/"),
    _create("create id --bundle B", "B", crun=None),
    _create("create id --bundle=B", "B", crun=None),
    _create("create id -b B", "B", crun=None),
    _create("create id -bB", "B", runc=None, crun=None),
    _create("create --bundle A --bundle B id", "B"),
    _create("create -b A --bundle=B id", "B", runc=None),
    _create("create --bundle= id"),
    _create("create --bundle -- id", "--"),
    _create("create --bundle --no-pivot id", "--no-pivot"),
    _create("create --bundle create id", "create"),
    _create("create --bundle", runc=None, crun=None),
    _create("create id --bundle", runc=None, crun=None),
    _create("create -- id --bundle B", runc=None, crun=None),
    _create("create -b B -- id", "B"),
    _create("create - --bundle B", "B", crun=None),
    _create("create ---bundle B id", runc=None, crun=None),
    _create("create", runc=None, crun=None),
    # the other flags of create and run
    _create("create --no-pivot --bundle B id", "B"),
    _create("create --no-new-keyring --no-pivot -b B id", "B"),
    _create("create id --no-pivot -b B", "B", crun=None),
    _create("create --no-pivot id --bundle B", "B", runc=None, crun=None),
    _create("create --pid-file p --bundle B id", "B"),
    _create("create --bundle B --pid-file --bundle id", "B"),
    _create("create --pid-file -b -b B id", "B"),
    _create("create --console-socket --bundle --bundle B id", "B"),
    _create("create --pidfd-socket s --bundle B id", "B", runc=None, crun=None),  # runc 1.2
    _create("create --unheard-of --bundle B id", "B", runc=None, crun=None),
    _create("create --bundle B create", "B"),
    _create("create --bundle B --help=false id", "B", crun=None),
    _create("create -f c.json -b B id", "B", config="c.json", runc=None, crun="c.json"),
    _create("create --config c.json id", config="c.json", runc=None, crun="c.json"),
    _create("create --config=/x/c.json -bB id", "B", config="/x/c.json", runc=None),
    _create("create -f/x=c.json id", config="/x=c.json", runc=None),
    _create("create -f config.json -b B id", "B", config="config.json", runc=None),
    _create("run -b B id", "B", command="run"),
    _create("run --detach --keep --bundle B id", "B", command="run", crun=None),
    _create("run create", command="run"),
    # restore makes a container, too; crun of the table cannot
    _restore("restore id"),
    _restore("restore --bundle B id", "B"),
    _restore("restore -d -b B --image-path run --work-path w id", "B"),
    _restore("restore --image-path --bundle -b B id", "B"),
    _restore("restore --manage-cgroups-mode soft --empty-ns network -b B id", "B"),
    _restore("restore --lsm-profile -b --lsm-mount-context -b --bundle=B id", "B"),
    _restore("--root r restore id --detach --bundle B", "B"),
    # global flags
    _create("--root r create -b B id", "B"),
    _create("-root r create -b B id", "B", crun=None),
    _create("--root create create -b B id", "B"),
    _create("--root -- create -b B id", "B"),
    _create("--log l --log-format json create -b B id", "B", log="l", log_format="json"),
    _create("--log=a --log b create -b B id", "B", log="b"),
    _create("--log=file:l create -b B id", "B", log="file:l", runc="B"),
    _create("-log l -log-format=json create -b B id", "B", log="l", log_format="json", crun=None),
    _create("--log= create -b B id", "B"),
    _create("--debug create -b B id", "B", debug=True),
    _create("-debug create -b B id", "B", debug=True, crun=None),
    _create("--debug=true create -b B id", "B", debug=True, crun=None),
    _create("--debug=false create -b B id", "B", crun=None),
    _create("--systemd-cgroup create -b B id", "B"),
    _create("-systemd-cgroup=0 create -b B id", "B", crun=None),
    _create("--rootless false create -b B id", "B"),
    _create("--criu x create -b B id", "B", crun=None),
    _create("--cgroup-manager disabled create -b B id", "B", runc=None),
    _create("--log-level debug create -b B id", "B", runc=None, crun=None),  # crun 1.9
    _create("--help=false create -b B id", "B", crun=None),
    _create("--version=false create -b B id", "B", crun=None),
    _create("-- create -b B id", "B"),
    _create("--debug -- create -b B id", "B", debug=True),
    _create(
        "--root r --log l --log-format json --systemd-cgroup create --bundle /no/B"
        " --pid-file p --console-socket s id",
        "/no/B", log="l", log_format="json",
    ),
    # an unknown global flag: Python guesses, a launcher does not
    _create("--nope create -b B id", "B", sure=False, runc=None, crun=None),
    _create("--nope 1 create -b B id", "B", sure=False, runc=None, crun=None),
    _create("---debug create -b B id", "B", sure=False, runc=None, crun=None),
    _create("--log-forma json create -b B id", "B", sure=False, runc=None),  # crun: unambiguous
    _other("--nope 1 state id", "state", sure=False),
    _other("--nope", "", sure=False),
    # help and version are printed instead
    _other("--version", "", version=True),
    _other("-v", "", version=True),
    _other("--help", "", help=True),
    _other("--version create -b B id", "create", bundle="B", version=True),
    _other("--help create -b B id", "create", bundle="B", help=True),
    _other("-h create", "create", help=True),
    _other("create --help", "create", help=True),
    _other("create id -h", "create", help=True),
    _other("run --bundle B --help", "run", bundle="B", help=True),
    _other("help create", "help"),
    # what makes no container
    _other("", ""),
    _other("state create", "state"),
    _other("exec create sh", "exec"),
    _other("exec id create --bundle B", "exec"),
    _other("exec -t id -- create", "exec"),
    _other("delete --force create", "delete"),
    _other("kill id KILL", "kill"),
    _other("restore --bundle B --help", "restore", bundle="B", help=True),
    _other("checkpoint --image-path restore id", "checkpoint"),
    _other("update --resources r.json id", "update"),
    _other("--root create state id", "state"),
    _other("--root r --log l --log-format json start id", "start", log="l", log_format="json"),
    _other("--root=r --log=l --log-format=json --debug --systemd-cgroup delete id", "delete",
           log="l", log_format="json", debug=True),
    _other("-root=r state id", "state"),
    _other("--log", ""),
    _other("--root", ""),
    _other("-- state id", "state"),
    _other("- create -b B id", "-"),
    Case(args=("", "create")),
    Case(args=("--root", "", "state", "id"), command="state"),
    Case(args=("create", "--bundle", "", "id"), command="create", creates=True, runc="", crun=""),
    Case(args=("create", "", "-b", "B"), command="create", bundle="B", creates=True, runc="B"),
    Case(args=("create", "-b", "a b|c", "id"), command="create", bundle="a b|c", creates=True,
         runc="a b|c", crun="a b|c"),
    Case(args=("create", "-b", "*", "id"), command="create", bundle="*", creates=True,
         runc="*", crun="*"),
)  # fmt: skip
