"""Where lines go: progress to stderr, results to stdout, and the one question. A stream that is closed never ends a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from kubectl_gpu_transition.report import indented


def write_line(stream: TextIO, text: str) -> None:
    """One line, flushed. After a failure the stream leads nowhere, so that the interpreter's own flush at the end can not fail either."""
    try:
        stream.write(text + "\n")
        stream.flush()
    except (OSError, ValueError):
        _silence(stream)


def _silence(stream: TextIO) -> None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def has_colour(stream: TextIO, environ: dict[str, str]) -> bool:
    """Colours only on a terminal, and never with NO_COLOR or TERM=dumb (spec section 11)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class StandardTerminal:
    """The process's own streams."""

    def say(self, line: str) -> None:
        """One line of progress on stderr, stripped of control characters."""
        write_line(sys.stderr, indented(line, 4))

    def ask(self, lines: Iterable[str], expected: str) -> bool:
        """Ask for exactly ``expected`` on the terminal; end of input is a no."""
        for line in lines:
            self.say(line)
        try:
            sys.stderr.write(f"Type the node's name to go on ({expected}): ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
        except (OSError, ValueError):
            return False
        if not (answer.endswith("\n") and sys.stderr.isatty()):  # no terminal has ended the line
            write_line(sys.stderr, "")
        return answer.strip() == expected
