"""The committed krew manifest against the rules of krew's own validation (its internal/index/validation package)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import kubectl_gpu_transition

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The manifest, parsed."""
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "krew-manifest.yaml")
    return document


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a platform with these labels is selected."""
    return all(labels[rule["key"]] in rule["values"] for rule in selector["matchExpressions"])


def test_it_is_a_plugin_of_the_version_in_the_code(manifest: dict[str, Any]) -> None:
    """Kind, name and version are what krew and our releases rely on."""
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"] == {"name": "gpu-transition"}
    assert manifest["spec"]["version"] == f"v{kubectl_gpu_transition.__version__}"


def test_it_has_only_fields_that_krew_knows(manifest: dict[str, Any]) -> None:
    """Krew refuses unknown fields."""
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(manifest["spec"]) <= {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
    for platform in manifest["spec"]["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "files", "bin"}
        assert set(platform["selector"]) == {"matchExpressions"}


def test_its_texts_fit_the_index(manifest: dict[str, Any]) -> None:
    """A short description of one line, and the Python that is needed among the caveats."""
    spec = manifest["spec"]
    assert "\n" not in spec["shortDescription"]
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "Python 3.10" in spec["caveats"]
    assert spec["description"].strip()


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
@pytest.mark.parametrize("os", ["linux", "darwin"])
def test_every_platform_is_matched_once(manifest: dict[str, Any], os: str, arch: str) -> None:
    """Krew takes a platform that two entries match, or none, for an error."""
    labels = {"os": os, "arch": arch}
    assert len([entry for entry in manifest["spec"]["platforms"] if matches(entry["selector"], labels)]) == 1


def test_windows_is_not_matched(manifest: dict[str, Any]) -> None:
    """There is no executable for it."""
    assert not [entry for entry in manifest["spec"]["platforms"] if matches(entry["selector"], {"os": "windows", "arch": "amd64"})]


def test_each_platform_installs_the_program_and_its_licence(manifest: dict[str, Any]) -> None:
    """What is extracted has the executable that ``bin`` names and a licence; the archive is a release's."""
    for platform in manifest["spec"]["platforms"]:
        assert re.fullmatch(r"[a-f0-9]{64}", platform["sha256"])
        assert platform["files"] == [{"from": name, "to": "."} for name in ("kubectl-gpu_transition", "LICENSE")]
        assert platform["bin"] == "kubectl-gpu_transition"
        release = f"https://github.com/kube-dc/kubectl-gpu-transition/releases/download/{manifest['spec']['version']}/"
        assert platform["uri"] == f"{release}kubectl-gpu_transition.tar.gz"
