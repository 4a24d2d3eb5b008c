"""Signals that do not reach the main thread's wait."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITING = """
import signal, sys, threading
from kubectl_gpu_transition.adapters import signals
from kubectl_gpu_transition.failures import InterruptedNow

signals.install()

class HalfMade:
    def __init__(self):
        threading.Event().wait()
        self.made = True

    def __del__(self):
        self.made

def other():  # the handler is called in this thread's wait, and the main thread's wait goes on
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))

threading.Timer(0.2, other).start()
try:
    HalfMade()
except InterruptedNow as error:
    print(error)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_that_does_not_wake_the_main_thread_ends_its_wait_all_the_same(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", WAITING, str(int(number))], capture_output=True, text=True, timeout=20, check=False)
    assert number.name in done.stdout, done
    assert done.stderr == ""
