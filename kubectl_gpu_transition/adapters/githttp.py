"""http and https remotes: dulwich's client over urllib3, with the settings that git would use for the URL.

References: git-config(1) ``http.*``, git(1) ``GIT_SSL_*``, curl's proxy variables. Credentials are looked for in credentials.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import urllib3
from dulwich.client import HTTPUnauthorized, Urllib3HttpGitClient

from kubectl_gpu_transition.adapters.credentials import Credential
from kubectl_gpu_transition.adapters.gitconfig import GitConfig, expand_home, parse_bool
from kubectl_gpu_transition.adapters.route import Location, find_for_url, redact
from kubectl_gpu_transition.adapters.transport import ExchangeFailed
from kubectl_gpu_transition.model import Problem

if TYPE_CHECKING:
    from dulwich.client import HTTPResponse


class HttpClient(Urllib3HttpGitClient):
    """One exchange over http. A status other than 200 is an ExchangeFailed that has the server's own words; 401 is HTTPUnauthorized."""

    def __init__(
        self, location: Location, config: GitConfig, environ: Mapping[str, str], credential: Credential | None, seconds: float
    ) -> None:
        self._pool = make_pool(location.url, config, environ)
        super().__init__(
            location.url,
            pool_manager=self._pool,
            username=credential.user if credential else None,
            password=credential.password if credential else None,
            # Only a backstop: the exchange as a whole is limited by its caller, who can say so better.
            timeout=seconds + 1,
            thin_packs=False,
            quiet=True,
        )

    def stop(self) -> None:
        """End the exchange from another thread, as far as a connection can be ended."""
        self._pool.clear()

    close = stop

    def said(self) -> str:
        """Nothing: an http server has no stderr."""
        return ""

    def _http_request(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        data: bytes | Iterator[bytes] | None = None,
        raise_for_status: bool = True,  # noqa: ARG002 - always, and by ourselves
    ) -> tuple[HTTPResponse, Callable[[int], bytes]]:
        response, read = super()._http_request(url, headers, data, raise_for_status=False)
        status = response.status
        if status == 401:
            response.close()
            raise HTTPUnauthorized(None, redact(url))
        if status != 200:
            words = " ".join(read(1000).decode("utf-8", "replace").split()) if _is_text(response) else ""
            response.close()
            raise ExchangeFailed(_describe_status(status, redact(self._base_url), words))
        if data is None and not (response.headers.get("Content-Type") or "").startswith("application/x-git-"):
            response.close()
            message = f"{redact(self._base_url)}: the answer is no git server's (content type {response.headers.get('Content-Type')})"
            raise ExchangeFailed(Problem(message, "check the remote's URL; a login page answers so"))
        return response, read


def _is_text(response: Any) -> bool:
    return (response.headers.get("Content-Type") or "").startswith("text/plain")


def _describe_status(status: int, url: str, words: str) -> Problem:
    said = f": {redact(words)}" if words else ""
    if status == 403:
        return Problem(f"{url}: access is forbidden (403){said}", "use credentials that may do this")
    if status == 404:
        return Problem(f"{url}: there is no such repository, or these credentials may not see it (404){said}", "check the remote's URL")
    if status == 407:
        return Problem(f"{url}: the proxy asks for credentials (407)", "put them into http.proxy")
    return Problem(f"{url}: the server answered {status}{said}", "try again")


def make_pool(url: str, config: GitConfig, environ: Mapping[str, str]) -> urllib3.PoolManager:
    """urllib3's pool for one URL: certificates, proxy and extra headers. Raises ConfigError and ExchangeFailed."""

    def setting(name: str, variable: str | None = None) -> str | None:
        if variable is not None and environ.get(variable):
            return environ[variable]
        values = find_for_url(config, "http", name, url)
        return values[-1] if values else None

    def file(name: str, variable: str) -> str | None:
        path = setting(name, variable)
        return expand_home(path, environ) if path else None

    verify = setting("sslVerify")
    checked = "GIT_SSL_NO_VERIFY" not in environ and (verify is None or parse_bool(verify, "http.sslVerify"))
    headers = {"User-Agent": setting("userAgent", "GIT_HTTP_USER_AGENT") or "git/kubectl-gpu-transition"}
    for header in _since_empty(find_for_url(config, "http", "extraHeader", url)):
        name, _, value = header.partition(":")
        headers[name.strip()] = value.strip()
    # Only what was surely not sent is tried again: a connection that failed, never a request.
    retries = urllib3.Retry(total=None, connect=1, read=0, status=0, other=0, redirect=5)
    options: dict[str, Any] = {"headers": headers, "retries": retries}
    if urlsplit(url).scheme == "https":
        options |= {
            "cert_reqs": "CERT_REQUIRED" if checked else "CERT_NONE",
            "ca_certs": file("sslCAInfo", "GIT_SSL_CAINFO"),
            "ca_cert_dir": file("sslCAPath", "GIT_SSL_CAPATH"),
            "cert_file": file("sslCert", "GIT_SSL_CERT"),
            "key_file": file("sslKey", "GIT_SSL_KEY"),
        }
        if not checked:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    proxy = find_proxy(url, setting("proxy"), environ)
    if proxy is None:
        return urllib3.PoolManager(**options)
    parts = urlsplit(proxy)
    if parts.scheme not in ("http", "https"):
        raise ExchangeFailed(Problem(f"the proxy {redact(proxy)} is of a kind that is not supported", "use an http proxy"))
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return urllib3.ProxyManager(redact(proxy), proxy_headers=urllib3.make_headers(proxy_basic_auth=user) if user else None, **options)


def _since_empty(values: list[str]) -> list[str]:
    kept: list[str] = []
    for value in values:
        kept = [*kept, value] if value else []
    return kept


def find_proxy(url: str, configured: str | None, environ: Mapping[str, str]) -> str | None:
    """The proxy for a URL as git and curl choose it, with a scheme, or None. Configured but empty: none."""
    parts = urlsplit(url)
    names = ["http_proxy"] if parts.scheme == "http" else ["https_proxy", "HTTPS_PROXY"]
    proxy = configured
    for name in [*names, "all_proxy", "ALL_PROXY"]:
        if proxy is None:
            proxy = environ.get(name)
    if not proxy or _is_excluded(parts.hostname or "", environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excluded(host: str, names: str) -> bool:
    """curl's ``no_proxy``: names and their subdomains, addresses, networks, or ``*`` for all."""
    for name in (part.strip().lower().lstrip(".") for part in names.replace(" ", ",").split(",")):
        if name == "*" or (name and (host == name or host.endswith("." + name))):
            return True
        try:
            if "/" in name and ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
