"""Fixtures of the end-to-end tests: every test that uses ``backend`` or ``world`` runs on both servers.

The real control plane is used where KUBEBUILDER_ASSETS names its binaries. Set but unusable is an error, never a skip.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kept import Keeper
from tests.harness.backend import Backend, RealBackend, SimBackend
from tests.harness.faultproxy import FaultProxy
from tests.harness.world import World, zipapp_path

_ASSETS = os.environ.get("KUBEBUILDER_ASSETS")


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    """Starts a server when it is first asked for, one of each kind a session."""
    with contextlib.ExitStack() as stack:
        started: dict[str, Backend] = {}
        broken: dict[str, Exception] = {}

        def start(name: str) -> Backend:
            if name in broken:
                raise RuntimeError(f"the {name} server did not start: {broken[name]}") from broken[name]
            if name not in started:
                workdir = tmp_path_factory.mktemp(name)
                backend: Backend = SimBackend(workdir) if name == "sim" else RealBackend(workdir, Path(_ASSETS or ""))
                try:
                    started[name] = stack.enter_context(backend)
                except Exception as error:
                    broken[name] = error
                    raise
            return started[name]

        yield start


@pytest.fixture(scope="session", params=["sim", "real"] if _ASSETS else ["sim"])
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Backend:
    """The server; what earlier tests left on it is still there (``world`` removes it)."""
    return backends(request.param)


@pytest.fixture(autouse=True)
def _served(request: pytest.FixtureRequest) -> None:
    """Skips a test marked ``needs`` where the server lacks that API, and notes the server's version in the report."""
    if "backend" not in request.fixturenames:
        return
    backend: Backend = request.getfixturevalue("backend")
    request.node.user_properties.append(("server", ".".join(backend.version.split(".")[:2])))
    for marker in request.node.iter_markers("needs"):
        for api_version in marker.args:
            if not backend.serves(api_version):
                pytest.skip(f"not served: {api_version}")


@pytest.fixture(scope="module")
def keeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """Keeps the world of ``kept_world``."""
    request.getfixturevalue("backends")  # the servers have to outlive it
    keeper = Keeper(tmp_path_factory.mktemp("kept"))
    yield keeper
    keeper.close()


@pytest.fixture
def kept_world(backend: Backend, keeper: Keeper) -> World:
    """The world that the tests of a module share: in mode pod-hami, still (see ``kept``), and put back before each of them."""
    return keeper.open(backend)


@pytest.fixture
def kept_proxy(kept_world: World) -> Iterator[FaultProxy]:
    """A proxy in front of the server of ``kept_world``."""
    with FaultProxy(kept_world.backend) as proxy:
        yield proxy


@pytest.fixture
def make_world(backend: Backend, keeper: Keeper, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes the world of a test with other options than the usual ones (see ``World``); once a test."""
    keeper.close()
    backend.reset()
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(World(backend, tmp_path, **options))


@pytest.fixture
def world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """A fleet, a cluster and a player, all ready in mode pod-hami; ``@pytest.mark.world(…)`` gives options."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("world"))):
        options |= marker.kwargs
    return make_world(**options)


@pytest.fixture(scope="session")
def zipapp() -> Path:
    """The program as it is shipped."""
    path = zipapp_path()
    if not path.is_file():
        pytest.fail(f"{path} is missing: build it with `make dist`, or name another with KGT_ZIPAPP")
    return path
