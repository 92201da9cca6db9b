"""A process that has imported torch and dlbackend, opened no driver, and forks a child for every piece of code.

tests/fresh_process.py starts it. A child is what a new interpreter would be after its imports: it runs the code as
`__main__` and ends as programs end, through Python's and the library's own exit. Only what is decided while Python,
torch and dlbackend are loaded is the server's and not the request's; tests of that start interpreters of their own.

Requests are lines of JSON on stdin: the code, environment variables, and files for the child's output. Answers on
stdout: the child's process id, then its exit status.
"""

import json
import os
import sys
from typing import Any


def serve() -> dict[str, Any]:
    """Answers requests. Returns in a child, with its request; ends the process when there are no more."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def become(request: dict[str, Any]) -> str:
    """Makes this child the process that was asked for; its code."""
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    # The server's own ends of the pipes stay with the server.
    for descriptor, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["-c"]
    code: str = request["code"]
    return code


if __name__ == "__main__":
    import torch  # noqa: F401

    import dlbackend  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    program = compile(become(serve()), "<string>", "exec")
    for name in set(globals()) - {"__builtins__", "__name__", "program"}:
        del globals()[name]
    exec(program)
