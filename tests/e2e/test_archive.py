"""The archive itself: what a running transition may still need from it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.harness.faultproxy import FaultProxy
from tests.harness.world import World, zipapp_path


@pytest.fixture
def own_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may destroy, without bytecode: that would be read whole at the start, and hide a module that is loaded late."""
    copy = tmp_path / "kubectl-gpu_transition"
    with zipfile.ZipFile(zipapp_path()) as built, copy.open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bare:
            for name in built.namelist():
                if not name.startswith("bytecode/"):
                    bare.writestr(name, built.read(name))
    monkeypatch.setenv("KGT_ZIPAPP", str(copy))
    return copy


def test_an_upgrade_of_the_archive_after_the_cordon_does_not_stop_the_run(world: World, own_archive: Path) -> None:
    """Everything that later steps need has been loaded before the first write (spec section 4)."""
    with FaultProxy(world.backend) as proxy:
        proxy.on(verb="patch", path=r"/nodes/", before=lambda *_: own_archive.write_bytes(b"upgraded\n" * 600_000))
        result = world.run("apply", kubeconfig=world.backend.kubeconfig(world.root / "proxied.kubeconfig", server=proxy.url))
    assert result.code == 0, result
    assert own_archive.read_bytes().startswith(b"upgraded")
    assert world.mode() == "vm-passthrough"
    assert not world.is_cordoned()
