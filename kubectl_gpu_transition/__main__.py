"""The process: signal handlers first, then the program, then its exit code. It must decide nothing and import nothing else."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from kubectl_gpu_transition.adapters import signals


def main() -> NoReturn:
    """Run the command line and end the process with its exit code.

    The handlers have to stand before the heavy imports, which is why ``cli`` is imported here and not above. The process ends at once:
    threads that still wait for a server must not hold it up, and a closed stdout must not turn into Python's own exit code 120.
    """
    signals.install()
    from kubectl_gpu_transition import cli

    code = cli.main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


if __name__ == "__main__":
    main()
