"""What holds for every test: nothing is inherited from whoever runs them, and no test is skipped unnoticed.

The end-to-end tests' own fixtures are in ``e2e/conftest.py``; the hooks that look at a whole session are here, because with pytest-xdist
the process that sums up does not read that file.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.harness.gitservers import has_ssh

NOT_SERVED = Path(__file__).parent / "e2e" / "not-served.txt"
REAL_NOT_RUN = (
    "real control plane: not run; set KUBEBUILDER_ASSETS to a directory with etcd, kube-apiserver, kube-controller-manager"
    " and kube-scheduler (the first two from setup-envtest, the others from the same Kubernetes release)"
)

NO_SSH = "tests over ssh: not run; install openssh-server and openssh-client"

_INHERITED = re.compile(
    r"GIT_.*|XDG_.*|KUBECONFIG|KUBE_DC_FLEET|EMAIL|SSH_(ASKPASS|AUTH_SOCK)|NO_COLOR|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE
)
_NEEDS = "not served: "


def pytest_configure(config: pytest.Config) -> None:
    """Take the inherited environment away, for this process and all it starts, and register the session's bookkeeping."""
    for name in [name for name in os.environ if _INHERITED.fullmatch(name)]:
        del os.environ[name]
    home = tempfile.mkdtemp(prefix="home-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    os.environ["HOME"] = home
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    config.addinivalue_line("markers", "needs(api_version): the API that a test needs; skipped where the server does not serve it")
    config.addinivalue_line("markers", "ssh: a test that needs sshd and ssh on this machine; skipped without them, which CI does not allow")
    config.addinivalue_line("markers", "world(**options): what the fixture `world` is made with")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(config), "skips")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine does not have."""
    if item.get_closest_marker("ssh") and not has_ssh():
        pytest.skip(NO_SSH)


class Skips:
    """Watches a session's skips: those for want of an API must be the committed ones, and with CI=true there may be no others."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._e2e = False
        self._ran: dict[str, str] = {}
        self._not_served: set[tuple[str, str, str]] = set()
        self._other: dict[str, str] = {}
        self._complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what ran, on which server, and what was skipped for which reason."""
        self._e2e = self._e2e or "/e2e/" in report.nodeid
        version = str(dict(report.user_properties).get("server", ""))
        if version:
            self._ran[report.nodeid] = version
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(_NEEDS):
            self._not_served.add((version, report.nodeid, reason.removeprefix(_NEEDS)))
        else:
            self._other[report.nodeid] = reason

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself as a whole is a skip too."""
        if report.skipped:
            self._other[report.nodeid] = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a session whose skips are not as agreed."""
        self._complaints = [*self._compare(), *self._forbid()]
        if self._complaints and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was wrong with the skips, and whether the real control plane was left out."""
        if self._e2e and not os.environ.get("KUBEBUILDER_ASSETS"):
            terminalreporter.write_line(REAL_NOT_RUN, yellow=True)
        if NO_SSH in self._other.values():
            terminalreporter.write_line(NO_SSH, yellow=True)
        for complaint in self._complaints:
            terminalreporter.write_line(complaint, red=True)

    def _compare(self) -> list[str]:
        agreed = read_not_served(NOT_SERVED)
        versions = set(self._ran.values())
        complaints = [f"skipped, but not in {NOT_SERVED.name}: {' '.join(entry)}" for entry in sorted(self._not_served - agreed)]
        for entry in sorted(agreed - self._not_served):
            if entry[0] in versions and (entry[1] in self._ran or self._is_whole()):
                complaints.append(f"in {NOT_SERVED.name}, but not skipped: {' '.join(entry)}")
        return complaints

    def _forbid(self) -> list[str]:
        if os.environ.get("CI") != "true":
            return []
        complaints = [f"skipped, which CI does not allow: {nodeid}: {reason}" for nodeid, reason in sorted(self._other.items())]
        if os.environ.get("KGT_REQUIRE_REAL") and self._e2e and not any("[real" in nodeid for nodeid in self._ran):
            complaints.append("no test ran on the real control plane, and it was demanded")
        return complaints

    def _is_whole(self) -> bool:
        """Whether all end-to-end tests were asked for, so that a listed test that did not run no longer exists."""
        option = self._config.option
        narrowed = option.keyword or option.markexpr or getattr(option, "lf", False) or option.maxfail
        tops = {NOT_SERVED.parents[2], NOT_SERVED.parents[1], NOT_SERVED.parent}
        base = self._config.invocation_params.dir
        return not narrowed and any((base / argument).resolve() in tops for argument in self._config.args)


def read_not_served(path: Path) -> set[tuple[str, str, str]]:
    """The agreed skips: version of the server, test, API."""
    lines = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {(version, nodeid, api) for version, nodeid, api in lines}
