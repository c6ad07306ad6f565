"""`python -m MODULE` with its imports done: each run is a fork of a process that has them,
which saves most of the second that a start takes. `run` is for tests that start the program;
`python` is an executable for mpiexec, and for the program when it starts ranks itself.

A request is a packet with the open files of the run: its standard streams, and mpiexec's. The
process that asks sends the signals it gets, as bytes; closing its end kills the run.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import socket
import sys

MODULES = (
    *("osucaffe.cli", "osucaffe.solvers.solver", "osucaffe.solvers.signals", "osucaffe.parallel"),
    *("osucaffe.comm.create", "osucaffe.backends.cpu.onednn", "matplotlib"),
    *(
        "osucaffe.cli.train.training",
        "osucaffe.apps.photographs.classify",
        "osucaffe.cli.data.data",
    ),
    "osucaffe.parallel.data_parallel",
)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MPIEXECS = "PMI_FD"
"""The environment variable with the number of the file by which mpiexec's ranks meet."""


@functools.cache
def python() -> str:
    """An executable that does what this Python does, but forks runs of modules (-m)."""
    import atexit
    import subprocess
    import tempfile
    from pathlib import Path

    folder = tempfile.TemporaryDirectory(prefix="osucaffe-fork-")
    path = Path(folder.name) / "python"
    path.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        f"import forked\nforked.become({str(path)!r}, {sys.executable!r})\n"
    )
    path.chmod(0o755)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    given = os.environ.get("PYTHONPATH")
    paths = [str(Path(__file__).parents[1]), *([given] if given else [])]
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, str(path)],
        env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin
    assert server.stdout
    server.stdout.readline()  # once it listens

    @atexit.register
    def end() -> None:
        assert server.stdin
        server.stdin.close()  # which ends it
        server.wait()
        folder.cleanup()

    return str(path)


def run(arguments: list[str], folder: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run `python -m ARGUMENTS` in a folder, with variables that no library reads when it is
    loaded. Returns its exit code, and what it wrote to both streams."""
    import tempfile

    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        open(os.devnull) as nothing,
    ):
        streams = {stream: file.fileno() for stream, file in enumerate((nothing, out, err))}
        with _request(python(), ["-m", *arguments], folder, environment, streams) as server:
            code = os.waitstatus_to_exitcode(int(server.recv(64)))
        for file in out, err:
            file.seek(0)
        return code, out.read(), err.read()


def become(path: str, interpreter: str) -> None:
    """Be `interpreter` with sys.argv: what the executable at this path does. Where its run needs
    more files than a request carries, or is not one of a module, it is a process as any other."""
    arguments = [each for each in sys.argv[1:] if each != "-P"]
    if "-m" not in arguments[:1] or (MPIEXECS not in os.environ and "PMIX_RANK" in os.environ):
        os.execv(interpreter, [interpreter, *sys.argv[1:]])
    streams = [0, 1, 2, *(int(os.environ[name]) for name in (MPIEXECS,) if name in os.environ)]
    files = {number: number for number in streams}
    with _request(path, arguments, os.getcwd(), dict(os.environ), files) as server:
        for forwarded in FORWARDED:
            signal.signal(forwarded, lambda number, _: server.send(bytes([number])) and None)
        for number in streams:
            os.close(number)
        code = os.waitstatus_to_exitcode(int(server.recv(64)))
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _request(
    path: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    files: dict[int, int],
) -> socket.socket:
    """Ask for a run, with this process's limit of files. files: those that it has, by number."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    text = json.dumps([arguments, folder, environment, limit, list(files)])
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(f"{path}.socket")
    socket.send_fds(server, [text.encode()], list(files.values()))
    return server


def _serve(path: str) -> None:
    """Fork a run for each request, until standard input is closed."""
    import select

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.socket")
        listener.listen(64)
        print("listening", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                break
            connection.close()
        else:
            return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, *_ = socket.recv_fds(connection, 1 << 20, 8)
    if child := os.fork():
        for file in files:
            os.close(file)
        _watch(child, connection)
    connection.close()
    _run(path, files, *json.loads(text))


def _watch(child: int, connection: socket.socket) -> None:
    """Pass signals on to the run, and its end to who asked for it."""
    import select

    end = os.pidfd_open(child)
    while end not in select.select([connection.fileno(), end], [], [])[0]:
        number = connection.recv(1)
        os.kill(child, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    try:
        connection.send(str(status).encode())
    finally:
        os._exit(0)


def _run(
    path: str,
    files: list[int],
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    limit: tuple[int, int],
    numbers: list[int],
) -> None:
    """Be what `python ARGUMENTS` starts."""
    import fcntl
    import resource
    import runpy

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    above = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for file in files]
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    for file in set(files) - set(numbers):
        os.close(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    _, module, *sys.argv[1:] = arguments
    found_beside = os.path.dirname(sys.executable)  # mpiexec
    os.environ["PATH"] = os.pathsep.join([found_beside, os.environ.get("PATH", "")])
    sys.executable = path
    sys.path[:0] = [os.getcwd(), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import logging

    for module in MODULES:
        importlib.import_module(module)
    logger = logging.getLogger("osucaffe")  # pycaffe's import has begun a log
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    _serve(sys.argv[1])
