"""JSON of the API server to values: the kinds beside Node and Pod."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.facts import Facts, Requirement
from kubectl_gpu_transition.failures import Malformed
from kubectl_gpu_transition.flux import find_gitops
from kubectl_gpu_transition.kinds import daemonset_view, kustomization_view, permitted_host_devices, source_view
from kubectl_gpu_transition.model import GitopsFacts, Problem
from tests.core.builders import changed


def test_what_kubevirt_permits_are_the_names_of_both_lists() -> None:
    permitted = {
        "pciHostDevices": [{"resourceName": "nvidia.com/TU104GL_TESLA_T4"}, {"pciVendorSelector": "10DE:1EB8"}],
        "mediatedDevices": [{"resourceName": "vendor.example/vgpu"}],
        "usb": [{"resourceName": "vendor.example/stick"}],
    }
    assert permitted_host_devices({"spec": {"configuration": {"permittedHostDevices": permitted}}}) == {
        "nvidia.com/TU104GL_TESLA_T4",
        "vendor.example/vgpu",
    }
    assert permitted_host_devices({}) == frozenset()
    with pytest.raises(Malformed):
        permitted_host_devices({"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": {}}}}})


def daemonset(affinity: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "a", "name": "b"}, "spec": {"template": {"spec": {"affinity": affinity}}}}


def required_affinity(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def test_the_required_node_affinity_of_a_daemonset() -> None:
    term = {
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}, {"key": "b", "operator": "Exists"}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}],
    }
    assert daemonset_view(daemonset(required_affinity(term, {}))).node_terms == (
        (Requirement("a", "In", ("1", "2")), Requirement("b", "Exists", ()), Requirement("metadata.name", "In", ("gpu-1",), True)),
        (),
    )
    for nothing in (None, {}, {"nodeAffinity": {}}, {"podAntiAffinity": {}}):
        assert daemonset_view(daemonset(nothing)).node_terms is None
    for broken in ({"nodeAffinity": []}, required_affinity({"matchExpressions": {}}), required_affinity({"matchFields": [{}]})):
        with pytest.raises(Malformed):
            daemonset_view(daemonset(broken))


KUSTOMIZATION: dict[str, Any] = {
    "metadata": {"name": "gpu-node-mode", "namespace": "flux-system", "generation": 2},
    "spec": {"path": "./clusters/a", "sourceRef": {"kind": "GitRepository", "name": "flux-system"}},
}
SOURCE: dict[str, Any] = {"metadata": {"name": "flux-system", "namespace": "flux-system"}, "spec": {"url": "ssh://git@x"}}


@pytest.mark.parametrize(
    ("ref", "branch"),
    [
        pytest.param(None, "master", id="no ref is master"),
        pytest.param({}, "master", id="an empty ref is master"),
        pytest.param({"branch": "main"}, "main", id="a branch"),
        pytest.param({"name": "refs/heads/main", "branch": "other"}, "main", id="the name of a branch"),
        pytest.param({"name": "refs/pull/1/head"}, "name refs/pull/1/head", id="another name"),
        pytest.param({"tag": "v1", "branch": "main"}, "tag v1", id="a tag"),
        pytest.param({"semver": ">1", "tag": "v1"}, "semver >1", id="a range"),
        pytest.param({"commit": "abc", "name": "refs/heads/main", "branch": "main"}, "commit abc", id="a commit comes before all"),
        pytest.param({"name": None, "semver": "1.x"}, "semver 1.x", id="null is nothing"),
    ],
)
def test_what_flux_follows(ref: dict[str, Any] | None, branch: str) -> None:
    seen = Facts(kustomizations=(kustomization_view(KUSTOMIZATION),), sources=(source_view(changed(SOURCE, "spec.ref", ref)),))
    assert find_gitops(seen) == GitopsFacts("./clusters/a", "GitRepository flux-system/flux-system", "ssh://x", branch)


def test_what_flux_does_not_have() -> None:
    assert find_gitops(Facts()) == GitopsFacts(None, None, None, None)
    alone = Facts(kustomizations=(kustomization_view(KUSTOMIZATION),))
    assert find_gitops(alone) == GitopsFacts("./clusters/a", "GitRepository flux-system/flux-system", None, None)
    other = changed(KUSTOMIZATION, "spec.sourceRef", {"kind": "OCIRepository", "namespace": "x", "name": "y"})
    found = find_gitops(Facts(kustomizations=(kustomization_view(other),)))
    assert isinstance(found, GitopsFacts)
    assert found.source == "OCIRepository x/y"
    unread = Problem("no answer")
    assert find_gitops(Facts(kustomizations=unread)) == unread
    assert find_gitops(Facts(kustomizations=alone.kustomizations, sources=unread)) == unread
    for bad in ({"spec": []}, {"spec": {"sourceRef": "x"}}):
        with pytest.raises(Malformed):
            kustomization_view({**KUSTOMIZATION, **bad})
    with pytest.raises(Malformed):
        source_view(changed(SOURCE, "spec.ref", "x"))
