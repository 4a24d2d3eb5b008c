"""Credentials as kubectl has them: plugins, files, inline data, contexts; and what is refused by name.

Plan: every way to be somebody ends in a clean preview; every way to fail is one clear line with the plugin's own words, before a request
is sent anonymously; no key of a client is ever written to a file of ours.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.harness.world import Result, World

VERSION = "client.authentication.k8s.io/v1"


def credential_status(world: World) -> dict[str, str]:
    """What a plugin would answer for the admin of this server: a token, or a certificate with its key."""
    identity = world.backend.identity()
    if identity.token:
        return {"token": identity.token}
    assert identity.certificate is not None
    assert identity.key is not None
    return {"clientCertificateData": identity.certificate.read_text(), "clientKeyData": identity.key.read_text()}


def make_plugin(world: World, script: str, **fields: Any) -> dict[str, Any]:
    """A user entry whose credential plugin is this Python script; ``COUNT`` in it names a file that grows with each run."""
    path, count = world.root / "plugin.py", world.root / "plugin.count"
    path.write_text(f"COUNT = {str(count)!r}\nopen(COUNT, 'a').write('x')\n{script}\n")
    return {"exec": {"apiVersion": VERSION, "command": sys.executable, "args": [str(path)], "interactiveMode": "Never", **fields}}


def answering(status: dict[str, Any]) -> str:
    """A plugin's script that prints this status."""
    answer = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(answer))})"


def runs(world: World) -> int:
    """How often the plugin has run."""
    count = world.root / "plugin.count"
    return len(count.read_text()) if count.exists() else 0


def preview(world: World, credentials: dict[str, Any] | None, **cluster: Any) -> Result:
    """A preview with this user entry, and these additions to the cluster entry."""
    path = world.backend.kubeconfig(world.root / "tried.kubeconfig", credentials=credentials)
    config = json.loads(path.read_text())
    config["clusters"][0]["cluster"].update(cluster)
    path.write_text(json.dumps(config))
    return world.run("preview", kubeconfig=path)


def refuse(world: World, result: Result, *words: str, code: int) -> None:
    """The command failed with that code and said these words in one place, and the server saw no request of nobody's."""
    assert result.code == code, result
    for word in words:
        assert word in result.err + result.out, result
    assert "Traceback" not in result.err
    assert list(world.requests(user="system:anonymous")) == []


def test_a_plugin_s_credential_is_used(world: World) -> None:
    result = preview(world, make_plugin(world, answering(credential_status(world))))
    assert result.code == 0, result
    assert runs(world) == 1


def test_a_plugin_is_told_of_the_cluster_when_it_asks_to_be(world: World) -> None:
    script = (
        "import json, os\ninfo = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert info['spec']['cluster']['server'].startswith('https://'), info\n"
        "assert info['spec']['cluster']['certificate-authority-data']\n"
        "assert info['spec']['interactive'] is False and os.environ['STAGE'] == 'test'\n" + answering(credential_status(world))
    )
    fields = {"provideClusterInfo": True, "env": [{"name": "STAGE", "value": "test"}]}
    result = preview(world, make_plugin(world, script, **fields))
    assert result.code == 0, result


def test_a_credential_that_has_expired_is_renewed(world: World) -> None:
    soon = (datetime.now(timezone.utc) + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = preview(world, make_plugin(world, answering({**credential_status(world), "expirationTimestamp": soon})))
    assert result.code == 0, result
    assert runs(world) > 1


def test_a_credential_that_the_server_does_not_accept_any_more_is_renewed_once(world: World) -> None:
    """The first answer is a token nobody knows; the API server's 401 makes the program ask again."""
    stale, good = answering({"token": "stale"}), answering(credential_status(world))
    script = f"if len(open(COUNT).read()) == 1:\n    {stale}\nelse:\n    {good}"
    result = preview(world, make_plugin(world, script))
    assert result.code == 0, result
    assert runs(world) >= 2


PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fails with words": (
        "import sys; sys.exit('your session has ended, run: kdc login')",
        ("your session has ended, run: kdc login", "ended with 1"),
    ),
    "prints rubbish": ("print('Welcome to the corporate login!')", ("did not print an ExecCredential",)),
    "gives neither token nor certificate": (answering({}), ("neither a token nor a certificate",)),
    "gives a certificate without its key": (answering({"clientCertificateData": "x"}), ("neither a token nor a certificate",)),
    "speaks another version": ('print(\'{"apiVersion": "v9", "kind": "ExecCredential", "status": {"token": "t"}}\')', ("neither",)),
}


@pytest.mark.parametrize("kind", PLUGINS)
def test_a_plugin_that_fails_is_an_error_with_its_own_words(world: World, kind: str) -> None:
    script, words = PLUGINS[kind]
    refuse(world, preview(world, make_plugin(world, script)), "credential plugin", *words, code=3)


def test_a_plugin_that_is_not_there_is_named(world: World) -> None:
    user = {"exec": {"apiVersion": VERSION, "command": "kdc-login", "installHint": "get it from the portal", "interactiveMode": "Never"}}
    refuse(world, preview(world, user), "kdc-login", "get it from the portal", code=3)


def test_what_a_plugin_printed_is_never_shown(world: World) -> None:
    result = preview(world, make_plugin(world, 'print(\'{"token": "s3cr3t-t0ken"\')'))
    refuse(world, result, "did not print an ExecCredential", code=3)
    assert "s3cr3t-t0ken" not in result.out + result.err


def test_certificates_and_tokens_may_be_in_files_beside_the_kubeconfig(world: World) -> None:
    identity = world.backend.identity()
    (world.root / "ca.crt").write_bytes(world.backend.ca_pem)
    user: dict[str, Any] = {}
    if identity.token:
        (world.root / "token").write_text(f"{identity.token}\n")
        user = {"tokenFile": "token"}
    else:
        assert identity.certificate is not None
        assert identity.key is not None
        (world.root / "client.crt").write_bytes(identity.certificate.read_bytes())
        (world.root / "client.key").write_bytes(identity.key.read_bytes())
        user = {"client-certificate": "client.crt", "client-key": str(world.root / "client.key")}
    result = preview(world, user, **{"certificate-authority": "ca.crt", "certificate-authority-data": None})
    assert result.code == 0, result


def test_a_certificate_for_another_name_passes_with_tls_server_name(world: World) -> None:
    assert preview(world, None, **{"tls-server-name": "localhost"}).code == 0
    refuse(world, preview(world, None, **{"tls-server-name": "elsewhere.example"}), "certificate", code=3)


class _Refusing(BaseHTTPRequestHandler):
    """A proxy that lets nobody through and notes who asked."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        self.send_error(403, "not through here")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def proxy() -> Any:
    """Address of a proxy, and the list of what it was asked for."""
    handler = type("Refusing", (_Refusing,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_kubeconfig_s_proxy_is_used(world: World, proxy: tuple[str, list[str]]) -> None:
    url, asked = proxy
    result = preview(world, None, **{"proxy-url": url})
    assert result.code == 3, result
    assert asked
    assert all(path in world.backend.url for path in asked)


@pytest.mark.parametrize(
    ("user", "cluster", "word"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({"as": "root", "token": "t"}, {}, "as is not supported"),
        ({"token": "t"}, {"proxy-url": "socks5://127.0.0.1:1"}, "proxy-url"),
        ({"client-certificate-data": "%%%", "client-key-data": "%%%"}, {}, "not base64"),
        ({"client-certificate": "nowhere.crt", "client-key": "nowhere.key"}, {}, "nowhere.crt"),
    ],
    ids=["auth-provider", "impersonation", "a socks proxy", "data that is not base64", "a certificate file that is missing"],
)
def test_what_is_not_supported_or_not_there_is_refused_by_name(
    world: World, user: dict[str, Any], cluster: dict[str, Any], word: str
) -> None:
    refuse(world, preview(world, user, **cluster), word, code=2)


def test_another_context_than_the_current_one_is_used_when_it_is_named(world: World) -> None:
    path = world.backend.kubeconfig(world.root / "two.kubeconfig")
    config = json.loads(path.read_text())
    config["contexts"].append({"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "nobody"}})
    config["clusters"].append({"name": "elsewhere", "cluster": {"server": "https://127.0.0.1:1"}})
    config["users"].append({"name": "nobody", "user": {}})
    config["current-context"] = "elsewhere"
    path.write_text(json.dumps(config))
    assert world.run("preview", kubeconfig=path, context="admin@test").code == 0
    assert world.run("preview", kubeconfig=path, request_timeout="2s").code == 3


_AUDIT = """
import os, sys

def note(event, args, log=os.open(os.environ["AUDIT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
    if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(log, f"{args[0]}\\n".encode())

sys.addaudithook(note)
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no anonymous memory here")
def test_a_preview_opens_no_file_for_writing_not_even_for_a_key(world: World) -> None:
    hook = world.root / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_AUDIT)
    log = world.root / "audit.log"
    result = world.run("preview", env={"PYTHONPATH": str(hook), "AUDIT": str(log)})
    assert result.code == 0, result
    assert log.exists()
    named = [line for line in log.read_text().splitlines() if line != os.devnull and not line.isdigit()]  # a number is a pipe
    assert named == []
