"""The process: open streams and signal handlers first, then the program, then its exit code. It must decide nothing."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from kubectl_gpu_transition.adapters import signals
from kubectl_gpu_transition.failures import InterruptedNow

_INTERRUPTED = 130


def _open_streams() -> None:
    """Give a stream that the caller has closed (``>&-``) a place that leads nowhere: nothing may end a run for it, and no file that is
    opened later may take its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  (open as long as the process is)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code.

    The handlers have to stand before the heavy imports, which is why ``cli`` is imported here and not above. The process ends at once:
    threads that still wait for a server must not hold it up, and a closed stdout must not turn into Python's own exit code 120.
    """
    _open_streams()
    try:
        signals.install()
        from kubectl_gpu_transition import cli

        code = cli.main(sys.argv[1:])
    except InterruptedNow:
        code = _INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


if __name__ == "__main__":
    main()
