"""The client is imported and works on Windows and macOS: modules of some systems alone are behind a guard. Pinned
packages run on every supported Python.

A guard is a `try` that catches the error of a missing name, or an `if` by `hasattr`, `os.name` or `sys.platform`.
"""

import ast
from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from tests.tidy.sources import PACKAGES, PROJECT, content, files, name, tree

# Packages of the client's distribution.
CLIENT = (PACKAGES["duetime"], PACKAGES["duetime_format"])
SERVERS = "of `duetime up`, whose servers run on Linux; it is refused elsewhere"
ALLOWED = {
    "sdk/duetime/cli/child.py": SERVERS,
    "sdk/duetime/cli/preflight.py": SERVERS,
    "sdk/duetime/cli/up.py": SERVERS,
    "sdk/duetime/client/tasks/hosted.py": "of tasks in processes, which are refused elsewhere",
    "sdk/duetime/client/tasks/processes.py": "of tasks in processes, which are refused elsewhere",
    "sdk/duetime/cli/workers.py": "of `duetime work`, which is refused elsewhere",
}
# Modules missing on Windows.
MODULES = set("crypt fcntl grp nis posix pty pwd resource spwd syslog termios tty uvloop".split())
OF_OS = set(
    "chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getpgid getpgrp getpriority getsid "
    "getuid initgroups killpg lchown mkfifo mknod nice openpty pread preadv pwrite pwritev register_at_fork "
    "sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid setgid setgroups setpgid setpriority "
    "setsid setuid statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname wait wait3 wait4 waitid WNOHANG".split()
)
OF_SIGNAL = set(
    "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm pause "
    "pthread_kill pthread_sigmask setitimer sigwait".split()
)
OF_SOCKET = {"AF_UNIX", "send_fds", "recv_fds", "SO_REUSEPORT"}
OF_LOOPS = {"add_signal_handler", "remove_signal_handler", "create_unix_server", "create_unix_connection"}
ARGUMENTS = {"preexec_fn", "pass_fds"}
BY_OWNER = {"os": OF_OS, "signal": OF_SIGNAL, "socket": OF_SOCKET}
CAUGHT = {"ImportError", "ModuleNotFoundError", "AttributeError", "NotImplementedError"}
TESTS = ("hasattr(", "os.name", "sys.platform", "platform.system")


def is_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        return any(one.type is not None and CAUGHT & set(names_of(one.type)) for one in node.handlers)
    return isinstance(node, ast.If | ast.IfExp) and any(test in ast.unparse(node.test) for test in TESTS)


def names_of(node: ast.AST) -> Iterator[str]:
    yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def lacking(node: ast.AST) -> Iterator[str]:
    """Names in a node that Windows does not have."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if module.partition(".")[0] in MODULES:
            yield module
        yield from (f"{module}.{alias.name}" for alias in node.names if alias.name in BY_OWNER.get(module, ()))
    elif isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr in BY_OWNER.get(owner, ()) or node.attr in OF_LOOPS:
            yield ast.unparse(node)
    elif isinstance(node, ast.keyword) and node.arg in ARGUMENTS:
        yield node.arg


def unguarded(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Unguarded names, with their line. An `if` that leaves its block guards the code after it."""
    for statement in body:
        if is_guard(statement):
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return | ast.Raise):
                return
            continue
        blocks = [value for _, value in ast.iter_fields(statement) if isinstance(value, list)]
        inner = [block for block in blocks if block and isinstance(block[0], ast.stmt | ast.ExceptHandler)]
        seen = {id(one) for block in inner for one in block}
        yield from in_expressions(statement, seen)
        for block in inner:
            for one in [block] if isinstance(block[0], ast.stmt) else [handler.body for handler in block]:
                yield from unguarded(one)


def in_expressions(node: ast.AST, without: set[int]) -> Iterator[tuple[int, str]]:
    if id(node) in without or is_guard(node):
        return
    for what in lacking(node):
        yield getattr(node, "lineno", 0), what
    for child in ast.iter_child_nodes(node):
        yield from in_expressions(child, without)


def test_client_needs_nothing_that_only_some_systems_have() -> None:
    found = {name(path): list(unguarded(tree(path).body)) for path in files(*CLIENT)}
    assert len(found) > 60
    assert {path: lines for path, lines in found.items() if lines and path not in ALLOWED} == {}
    # Exceptions of `up.py` without a use may go.
    assert [path for path in ALLOWED if not found.get(path)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import fcntl",
        "def f():\n    from fcntl import flock",
        "from os import fork",
        "os.register_at_fork(after_in_child=f)",
        "x = [signal.SIGKILL]",
        "class A:\n    def f(self):\n        for n in numbers:\n            self._loop.add_signal_handler(n, f)",
        "run(preexec_fn=f)",
        "try:\n    os.fork()\nexcept OSError:\n    pass",
        "try:\n    pass\nexcept OSError:\n    os.fork()",
        "if x:\n    pass\nelse:\n    os.fork()",
    ],
)
def test_rule_finds_forbidden_code(code: str) -> None:
    assert len(list(unguarded(ast.parse(code).body))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None",
        "if hasattr(os, 'register_at_fork'):\n    os.register_at_fork(after_in_child=f)",
        "def f():\n    if os.name == 'nt':\n        return\n    os.killpg(1, signal.SIGKILL)",
        "x = os.getuid() if hasattr(os, 'getuid') else 0",
        "signal.signal(signal.SIGTERM, f)",
    ],
)
def test_rule_lets_guards_pass(code: str) -> None:
    assert list(unguarded(ast.parse(code).body)) == []


def test_pinned_packages_run_on_the_oldest_supported_python() -> None:
    """Debian 12 has Python 3.11.2: a package for a later one would make the installation fail there."""
    pinned = {line.partition("==")[0].lower() for line in content(PROJECT / "constraints.txt").splitlines()}
    needed = {one.name: one.metadata.get("Requires-Python") or "" for one in metadata.distributions()}
    own = {name: spec for name, spec in needed.items() if name.lower() in pinned}
    assert own
    assert {name: spec for name, spec in own.items() if not SpecifierSet(spec).contains("3.11.2")} == {}
