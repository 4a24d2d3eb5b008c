"""A real control plane for the tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on 127.0.0.1.

Responsible for starting them from a directory of binaries (the layout that ``KUBEBUILDER_ASSETS`` names), for the certificates,
the audit log and the custom resource definitions that the program reads, and for ending exactly the processes it started.
It knows nothing of fleets or transitions, and nothing of one Kubernetes version: what differs is asked of the binaries.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .kube import Kube

START_SECONDS = 180.0
_LOG_TAIL = 4000
# Below Linux's ephemeral range, so that an outgoing connection of a busy machine can not take a port between choice and use.
_PORTS = range(15000, 31000)


# The user that the tests' own requests are made as; the program runs as somebody else.
HARNESS = "harness"


class PlaneError(RuntimeError):
    """A process of the control plane did not start, died, or did not become ready; the message has the tail of its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PlaneError("no free port on 127.0.0.1")


class Child:
    """A process that we started: its log goes to a file, and only this very process is ever signalled."""

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ.get("PATH", os.defpath), **(env or {})},
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")

    def check(self) -> None:
        """Raise PlaneError when the process has ended."""
        if self.process.poll() is not None:
            raise PlaneError(f"{self.name} ended with {self.process.returncode}; the end of its log:\n{self.tail()}")

    def stop(self, timeout: float = 10.0) -> None:
        """End the process (SIGTERM, then SIGKILL) and wait for it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class _Watchdog:
    """Ends the children when this process dies without a chance to clean up (SIGKILL): a shell that waits on our pipe."""

    def __init__(self, pids: Sequence[int]) -> None:
        script = 'read -r _; kill -TERM "$@" 2>/dev/null; sleep 2; kill -KILL "$@" 2>/dev/null'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, "watchdog", *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Call it off; must come before the children are ended, so that no reused process id is ever signalled."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


@dataclass(frozen=True)
class Crd:
    """One custom resource that the program reads: any content, with a status subresource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    def manifest(self) -> dict[str, object]:
        """The CustomResourceDefinition object."""
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{self.plural}.{self.group}",
                # Groups below k8s.io are protected: without an approval the server says so in the CRD's conditions.
                "annotations": {"api-approved.kubernetes.io": "unapproved, tests only"},
            },
            "spec": {
                "group": self.group,
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "names": {"plural": self.plural, "singular": self.kind.lower(), "kind": self.kind, "listKind": f"{self.kind}List"},
                "versions": [
                    {
                        "name": self.version,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {"openAPIV3Schema": {**anything, "properties": {"spec": anything, "status": anything}}},
                    }
                ],
            },
        }


CRDS = (
    Crd("nfd.k8s-sigs.io", "v1alpha1", "nodefeaturerules", "NodeFeatureRule", False),
    Crd("kustomize.toolkit.fluxcd.io", "v1", "kustomizations", "Kustomization", True),
    Crd("source.toolkit.fluxcd.io", "v1", "gitrepositories", "GitRepository", True),
    Crd("kubevirt.io", "v1", "kubevirts", "KubeVirt", True),
    Crd("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", True),
    Crd("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False),
    Crd("nodemaintenance.medik8s.io", "v1beta1", "nodemaintenances", "NodeMaintenance", False),
)

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "nonResourceURLs": ["/version"]},
        {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]},
        {"level": "None", "users": [HARNESS], "verbs": ["get", "list", "watch"]},  # the polling of the tests themselves
        {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "Request"},
    ],
}


@dataclass(frozen=True)
class Credentials:
    """A client certificate and its key, as PEM bytes."""

    certificate: bytes
    key: bytes


@final
@dataclass
class RealPlane:
    """etcd and the Kubernetes binaries of ``assets``, with everything they write below ``workdir``.

    The controller manager and the scheduler are started where ``assets`` has them. ``kube`` is a client with all rights.
    """

    assets: Path
    workdir: Path
    url: str = field(default="", init=False)
    version: str = field(default="", init=False)
    ca_pem: bytes = field(default=b"", init=False)
    audit_log: Path = field(default=Path(), init=False)
    kube: Kube = field(init=False, repr=False)
    children: dict[str, Child] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._ca = trustme.CA(organization_name="kubectl-gpu-transition tests")
        self.ca_pem = self._ca.cert_pem.bytes()
        self._watchdog: _Watchdog | None = None
        self._starting: list[tuple[Child, str]] = []

    def __enter__(self) -> RealPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Starting and stopping

    def start(self) -> None:
        """Start everything and wait until it serves; after a failure nothing is left running."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._require("etcd", "kube-apiserver")
        self.version = self._ask_version("kube-apiserver")
        try:
            self._start_api()
            self._watch_children()
            for crd in CRDS:
                self.kube.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd.manifest())
            self._start_controllers()
            self._watch_children()
            self._wait_for_crds()
            self._wait_for_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes that were started here, the last one first."""
        if self._watchdog:
            self._watchdog.stop()
            self._watchdog = None
        for name in reversed(list(self.children)):
            self.children.pop(name).stop()

    def check(self) -> None:
        """Raise PlaneError when one of the processes has ended."""
        for child in self.children.values():
            child.check()

    @property
    def minor(self) -> int:
        """The minor version of the API server, 20 for v1.20.2."""
        return _minor(self.version)

    def issue(self, user: str, *groups: str) -> Credentials:
        """A client certificate for a user in these groups (at most one group, as one subject has one organisation here)."""
        # The host name is not used: without one trustme writes an empty critical extension, which Go refuses.
        leaf = self._ca.issue_cert("client.test", common_name=user, organization_name=groups[0] if groups else None)
        return Credentials(b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes())

    def client(self, user: str, *groups: str) -> Kube:
        """A client that speaks as this user."""
        credentials = self.issue(user, *groups)
        certificate = self._write(f"client-{user}.crt", credentials.certificate)
        key = self._write(f"client-{user}.key", credentials.key)
        return Kube(self.url, ca=self.workdir / "ca.crt", cert=certificate, key=key, user_agent=f"{user}/1")

    # The pieces

    def _require(self, *names: str) -> None:
        missing = [name for name in names if not os.access(self.assets / name, os.X_OK)]
        if missing:
            raise PlaneError(f"{self.assets} has no executable {', '.join(missing)}")

    def _ask_version(self, name: str) -> str:
        answer = subprocess.run([self.assets / name, "--version"], capture_output=True, text=True, timeout=60, check=True)
        return answer.stdout.strip().removeprefix("Kubernetes ")

    def _write(self, name: str, content: bytes) -> Path:
        path = self.workdir / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path

    def _spawn(self, name: str, *flags: str) -> Child:
        child = Child(name, [self.assets / name, *flags], self.workdir / f"{name}.log")
        self.children[name] = child
        return child

    def _watch_children(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
        self._watchdog = _Watchdog([child.pid for child in self.children.values()])

    def _start_api(self) -> None:
        etcd_url, peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        etcd = self._spawn(
            "etcd",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--data-dir={self.workdir / 'etcd'}",
            "--unsafe-no-fsync",
        )
        _wait_until("etcd to listen", lambda: _listens(etcd_url), etcd)

        serving = self._ca.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        certificate = self._write("apiserver.crt", b"".join(blob.bytes() for blob in serving.cert_chain_pems))
        key = self._write("apiserver.key", serving.private_key_pem.bytes())
        signer = ec.generate_private_key(ec.SECP256R1())
        private = signer.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        public = signer.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        accounts, accounts_public = self._write("accounts.key", private), self._write("accounts.pub", public)
        ca = self._write("ca.crt", self.ca_pem)
        policy = self._write("audit-policy.json", json.dumps(_AUDIT_POLICY).encode())
        self.audit_log = self._write("audit.log", b"")

        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        api = self._spawn(
            "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.workdir}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={ca}",
            f"--service-account-key-file={accounts_public}",
            f"--service-account-signing-key-file={accounts}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
        )
        self.kube = self.client(HARNESS, "system:masters")
        _wait_until("kube-apiserver to be ready", lambda: _serves(self.kube, "/readyz"), api)

    def _wait_for_crds(self) -> None:
        for crd in CRDS:
            serves = functools.partial(_serves, self.kube, f"/apis/{crd.group}/{crd.version}/{crd.plural}")
            _wait_until(f"{crd.plural} to be served", serves, self.children["kube-apiserver"])

    def _start_controllers(self) -> None:
        extra = {
            "kube-controller-manager": [
                "--node-monitor-grace-period=24h",  # hand-made nodes stay Ready without a kubelet
                f"--service-account-private-key-file={self.workdir / 'accounts.key'}",
                f"--root-ca-file={self.workdir / 'ca.crt'}",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
            "kube-scheduler": ["--kube-api-qps=200", "--kube-api-burst=400"],
        }
        for name, flags in extra.items():
            if not (self.assets / name).exists():
                continue
            self._require(name)
            port = free_port()
            kubeconfig = self._write(f"{name}.kubeconfig", json.dumps(self._kubeconfig(f"system:{name}")).encode())
            if _minor(self._ask_version(name)) < 24:
                flags = [*flags, "--port=0"]  # the insecure port; the flag is gone from v1.24 on
            child = self._spawn(
                name, f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={port}", *flags
            )
            self._starting.append((child, f"https://127.0.0.1:{port}"))

    def _wait_for_controllers(self) -> None:
        for child, url in self._starting:
            _wait_until(f"{child.name} to listen", functools.partial(_listens, url), child)

    def _kubeconfig(self, user: str) -> dict[str, object]:
        # All rights: the controllers would otherwise need the service accounts of --use-service-account-credentials.
        credentials = self.issue(user, "system:masters")
        stem = user.replace(":", "-")
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": str(self.workdir / "ca.crt")}}],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate": str(self._write(f"{stem}.crt", credentials.certificate)),
                        "client-key": str(self._write(f"{stem}.key", credentials.key)),
                    },
                }
            ],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }


def _minor(version: str) -> int:
    found = re.match(r"v1\.(\d+)", version)
    if not found:
        raise PlaneError(f"not a version of Kubernetes: {version!r}")
    return int(found[1])


def _listens(url: str) -> bool:
    host, port = url.rpartition("//")[2].split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _serves(kube: Kube, path: str) -> bool:
    try:
        return kube.raw("GET", path)[0] == 200
    except OSError:
        return False


def _wait_until(what: str, holds: Callable[[], bool], child: Child) -> None:
    for _ in _ticks(START_SECONDS):
        child.check()
        if holds():
            return
    raise PlaneError(f"waited {START_SECONDS:.0f} s for {what}; the end of the log of {child.name}:\n{child.tail()}")


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)
