"""Server, trust and credentials of exactly one kubeconfig context, as kubectl has them. It sends no request.

The client library finds the context; the rest is done here, because its loader only logs a credential plugin that fails and
then goes on anonymously, does not renew certificates from one, ignores ``proxy-url``, and writes inline client keys to files.
A feature that is not supported is refused by name. Keys stay off the disk: they reach the TLS library through anonymous
memory, or, where a system has none, through a file that is removed before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib import request as proxies
from urllib.parse import urlsplit

import urllib3
import yaml

from kubectl_gpu_transition.adapters import lazyclient
from kubectl_gpu_transition.failures import Forbidden, Usage

lazyclient.install()
from kubernetes.config import kube_config  # noqa: E402  (after the lazy package stands)
from kubernetes.config.config_exception import ConfigException  # noqa: E402

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_PLUGIN_SECONDS = 60.0  # longest run of a credential plugin
_EARLY = 30.0  # seconds before its expiry that a credential is renewed
_UNSUPPORTED = {
    "auth-provider": "use a credential plugin (exec) instead",
    "as": "use a kubeconfig whose user may do it",
    "as-uid": "use a kubeconfig whose user may do it",
    "as-groups": "use a kubeconfig whose user may do it",
    "as-user-extra": "use a kubeconfig whose user may do it",
}


@dataclass(frozen=True)
class _Credential:
    """What a credential plugin gave: a token, or certificate and key in PEM, and the time (seconds since the epoch) it expires."""

    token: str | None
    certificate: bytes | None
    key: bytes | None
    expires: float | None


class Kubeconfig:
    """One context of one kubeconfig. ``pool`` and ``headers`` are to be asked for at each request: both may be renewed in between."""

    def __init__(self, path: str, context: str | None) -> None:
        """Read the file. Raises Usage for everything that can be told without a request; a credential plugin is not run yet."""
        self.path = path
        content = _load(path)
        self.context = str(context or content.get("current-context") or "")
        self._cluster, self._user = _find_context(content, path, self.context)
        self._base = os.path.dirname(os.path.abspath(path))
        self.server = _text(self._cluster, "server", self._where("cluster")).rstrip("/")
        if urlsplit(self.server).scheme not in ("http", "https") or not urlsplit(self.server).hostname:
            raise Usage(
                "kubeconfig-unreadable", f"{self._where('cluster')}: server {self.server!r} is no http or https address", "check the file"
            )
        if urlsplit(self.server).username is not None:
            raise Usage(
                "kubeconfig-unsupported",
                f"{self._where('cluster')}: credentials in the server's address are not supported",
                "give the user a token",
            )
        for section in (self._user, self._cluster):
            for key, instead in _UNSUPPORTED.items():
                if section.get(key):
                    raise Usage("kubeconfig-unsupported", f"{self._where('user')}: {key} is not supported", instead)
        self._lock = threading.Lock()
        self._credential: _Credential | None = None
        self._pool = self._make_pool()

    def _where(self, section: str) -> str:
        return f"--kubeconfig {self.path}, context {self.context}, its {section}"

    # ------------------------------------------------------------ what a request needs

    def headers(self) -> dict[str, str]:
        """The Authorization header, if any; a token file is read again each time, an expired plugin credential renewed.

        Raises Forbidden with the plugin's own words when it fails: there is never an anonymous request instead.
        """
        self._renew_if_due()
        if self._credential is not None and self._credential.token:
            return {"Authorization": f"Bearer {self._credential.token}"}
        if self._user.get("tokenFile"):
            try:
                with open(self._resolve(str(self._user["tokenFile"])), encoding="utf-8") as stream:
                    return {"Authorization": f"Bearer {stream.read().strip()}"}
            except (OSError, UnicodeDecodeError) as error:
                raise Forbidden(
                    "token-file", f"{self._where('user')}: the token file can not be read: {error}", "check the file"
                ) from error
        if self._user.get("token"):
            return {"Authorization": f"Bearer {self._user['token']}"}
        if self._user.get("username"):
            pair = f"{self._user['username']}:{self._user.get('password') or ''}"
            return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        return {}

    def pool(self) -> urllib3.PoolManager:
        """The connections, with the certificates that are good now."""
        self._renew_if_due()
        return self._pool

    def renew(self) -> bool:
        """After a 401: ask the credential plugin again. False where there is none to ask."""
        if not self._user.get("exec"):
            return False
        with self._lock:
            self._take(self._run_plugin())
        return True

    def _renew_if_due(self) -> None:
        if not self._user.get("exec"):
            return
        with self._lock:
            held = self._credential
            if held is None or (held.expires is not None and time.time() > held.expires - _EARLY):
                self._take(self._run_plugin())

    def _take(self, credential: _Credential) -> None:
        before, self._credential = self._credential, credential
        if credential.certificate != (before.certificate if before else None):
            self._pool = self._make_pool()

    # ------------------------------------------------------------ TLS and proxy

    def _make_pool(self) -> urllib3.PoolManager:
        options: dict[str, Any] = {"maxsize": 32}
        if self.server.startswith("https"):
            options["ssl_context"] = self._make_context()
            name = self._cluster.get("tls-server-name")
            if name:
                options["server_hostname"] = options["assert_hostname"] = str(name)
        proxy = self._find_proxy()
        return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)

    def _find_proxy(self) -> str | None:
        proxy = self._cluster.get("proxy-url")
        if proxy:
            if urlsplit(str(proxy)).scheme not in ("http", "https"):
                raise Usage(
                    "kubeconfig-unsupported",
                    f"{self._where('cluster')}: proxy-url of this kind is not supported",
                    "use an http or https proxy",
                )
            return str(proxy)
        parts = urlsplit(self.server)
        return None if proxies.proxy_bypass_environment(parts.hostname or "") else proxies.getproxies_environment().get(parts.scheme)  # type: ignore[attr-defined]

    def _make_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context()
            authority = self._material(self._cluster, "certificate-authority")
            if authority is not None:
                context = ssl.create_default_context(cadata=authority.decode("ascii"))
            if self._cluster.get("insecure-skip-tls-verify"):
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            certificate, key = self._material(self._user, "client-certificate"), self._material(self._user, "client-key")
            if self._credential is not None and self._credential.certificate:
                certificate, key = self._credential.certificate, self._credential.key
            if certificate is not None:
                with _as_file(certificate + b"\n" + (key or b"")) as name:
                    context.load_cert_chain(name)
        except (OSError, ValueError) as error:
            message = f"{self._where('user')}: a certificate or key can not be used: {_first_line(error)}"
            raise Usage("kubeconfig-unreadable", message, "check the kubeconfig") from error
        return context

    def _material(self, section: Mapping[str, Any], key: str) -> bytes | None:
        """PEM from ``KEY-data`` (base64) or the file ``KEY`` names, as kubectl: the data wins. Raises OSError or ValueError."""
        if section.get(f"{key}-data"):
            try:
                return base64.b64decode(str(section[f"{key}-data"]), validate=True)
            except binascii.Error as error:
                raise ValueError(f"{key}-data is not base64") from error
        if section.get(key):
            with open(self._resolve(str(section[key])), "rb") as stream:
                return stream.read()
        return None

    def _resolve(self, path: str) -> str:
        return path if os.path.isabs(path) else os.path.join(self._base, path)

    # ------------------------------------------------------------ credential plugins (client.authentication.k8s.io)

    def _run_plugin(self) -> _Credential:
        plugin = self._user["exec"]
        command = str(plugin.get("command") or "")
        failed = f"{self._where('user')}: the credential plugin {command or '(no command)'}"
        version = plugin.get("apiVersion")
        if version not in _EXEC_VERSIONS:
            raise Forbidden("credential-plugin", f"{failed} speaks {version}, not {' or '.join(_EXEC_VERSIONS)}", "update the kubeconfig")
        interactive = sys.stdin is not None and sys.stdin.isatty() and plugin.get("interactiveMode", "IfAvailable") != "Never"
        if plugin.get("interactiveMode") == "Always" and not interactive:
            raise Forbidden("credential-plugin", f"{failed} needs a terminal", "run this on a terminal, or log in first")
        spec: dict[str, Any] = {"interactive": interactive}
        if plugin.get("provideClusterInfo"):
            spec["cluster"] = self._cluster_info()
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        environ = {**os.environ, **{str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()}}
        environ["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        argv = [self._resolve(command) if os.sep in command else command, *(str(word) for word in plugin.get("args") or ())]
        try:
            ended = subprocess.run(
                argv,
                env=environ,
                stdin=None if interactive else subprocess.DEVNULL,
                capture_output=True,
                timeout=_PLUGIN_SECONDS,
                check=False,
            )
        except (OSError, ValueError) as error:
            hint = plugin.get("installHint") or "install it, or log in by other means"
            raise Forbidden("credential-plugin", f"{failed} can not be run: {_first_line(error)}", str(hint)) from error
        except subprocess.TimeoutExpired as error:
            raise Forbidden("credential-plugin", f"{failed} did not end within {_PLUGIN_SECONDS:.0f} s", "run it by hand") from error
        if ended.returncode != 0:
            words = ended.stderr.decode("utf-8", "replace").strip()
            raise Forbidden("credential-plugin", f"{failed} ended with {ended.returncode}: {words or 'it said nothing'}", "log in again")
        return _read_credential(ended.stdout, str(version), failed)

    def _cluster_info(self) -> dict[str, Any]:
        """The cluster as a plugin is told of it: the kubeconfig's own fields, and its extension for plugins as ``config``."""
        names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
        info = {name: self._cluster[name] for name in names if name in self._cluster}
        authority = self._material(self._cluster, "certificate-authority")
        if authority is not None:
            info["certificate-authority-data"] = base64.b64encode(authority).decode()
        for extension in self._cluster.get("extensions") or ():
            if extension.get("name") == "client.authentication.k8s.io/exec":
                info["config"] = extension.get("extension")
        return info


def _read_credential(answer: bytes, version: str, failed: str) -> _Credential:
    """What a plugin printed. Its text may hold secrets and is never shown."""
    try:
        raw = json.loads(answer)
        status = raw["status"]
        token, certificate, key = (status.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
        expiry = status.get("expirationTimestamp")
        expires = None if expiry is None else datetime.fromisoformat(str(expiry).replace("Z", "+00:00")).timestamp()
        fine = raw["kind"] == "ExecCredential" and raw["apiVersion"] == version
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Forbidden(
            "credential-plugin", f"{failed} did not print an ExecCredential", "run it by hand and see what it prints"
        ) from error
    if not fine or not (token or (certificate and key)):
        raise Forbidden("credential-plugin", f"{failed} gave neither a token nor a certificate with its key", "log in again")
    return _Credential(token, certificate.encode() if certificate else None, key.encode() if key else None, expires)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A name under which the TLS library can read ``content``: anonymous memory where there is such a thing (Linux), else a private
    file that is gone before anything is sent."""
    make: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if make is not None:
        descriptor = make("client-key")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="gpu-transition-") as stream:  # mode 0600
        stream.write(content)
        stream.flush()
        yield stream.name


def _load(path: str) -> Mapping[str, Any]:
    if not os.path.isfile(path):
        raise Usage("kubeconfig-missing", f"--kubeconfig {path}: there is no such file", "name the cluster's admin kubeconfig")
    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Usage(
            "kubeconfig-unreadable", f"--kubeconfig {path}: not readable as a kubeconfig: {_first_line(error)}", "check the file"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("contexts"), list) or not content["contexts"]:
        raise Usage("kubeconfig-unreadable", f"--kubeconfig {path}: it is not a kubeconfig with contexts", "check the file")
    return content


def _find_context(content: Mapping[str, Any], path: str, chosen: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The context's cluster and user, as the client library's loader finds them."""
    names = [str(entry.get("name")) for entry in content["contexts"] if isinstance(entry, dict)]
    if not chosen:
        raise Usage("context-unknown", f"--kubeconfig {path} has no current-context", f"name one with --context: {', '.join(names)}")
    if chosen not in names:
        raise Usage("context-unknown", f"--kubeconfig {path} has no context {chosen!r}", f"it has: {', '.join(names)}")
    try:
        loader = kube_config.KubeConfigLoader(content, active_context=chosen)
    except (ConfigException, KeyError, TypeError, AttributeError) as error:
        message = f"--kubeconfig {path}, context {chosen}: {_first_line(error)}"
        raise Usage("kubeconfig-unreadable", message, "check the file") from error
    found = [getattr(node, "value", None) or {} for node in (loader._cluster, loader._user)]
    if not all(isinstance(section, dict) for section in found):
        raise Usage("kubeconfig-unreadable", f"--kubeconfig {path}, context {chosen}: cluster or user is not an object", "check the file")
    return found[0], found[1]


def _text(section: Mapping[str, Any], key: str, where: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value:
        raise Usage("kubeconfig-unreadable", f"{where} has no {key}", "check the file")
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
