"""Makes the parts of the kubernetes client that we use importable without the parts that we do not.

``kubernetes/client/__init__.py`` imports some 800 generated modules: a second at every start, most of the archive's size, and
models that break on fields newer than they are. Stand-ins for the packages let Python find their submodules, but never run
an ``__init__``. This must happen before anything imports ``kubernetes``; once it has, objects are read as plain JSON.

``requests``, which only the renewal of an OIDC token needs, comes in with it and would unpack certifi's certificates into a temporary
file at once; it is told where they are in the archive, and unpacks them when it needs them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types

# What each package's own __init__ would have offered, as far as the client itself relies on it: name -> submodule.
_HOMES: dict[str, dict[str, str]] = {
    "kubernetes": {},
    "kubernetes.client": {
        "ApiClient": "api_client",
        "ApiException": "exceptions",
        "ApiKeyError": "exceptions",
        "ApiTypeError": "exceptions",
        "ApiValueError": "exceptions",
        "Configuration": "configuration",
        "OpenApiException": "exceptions",
    },
    "kubernetes.client.models": {},
    "kubernetes.config": {
        "ConfigException": "config_exception",
        "load_kube_config": "kube_config",
        "load_kube_config_from_dict": "kube_config",
        "new_client_from_config": "kube_config",
        "new_client_from_config_dict": "kube_config",
    },
}


class _Package(types.ModuleType):
    """A package without an ``__init__``: a name is taken from its submodule when somebody first asks for it."""

    def __getattr__(self, name: str) -> object:
        home = _HOMES[self.__name__].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        value = getattr(importlib.import_module(f"{self.__name__}.{home}"), name)
        setattr(self, name, value)
        return value


def _find_certificates() -> str:
    """The path of certifi's certificates, whether that is a file or a place in an archive (``requests.certs.where``)."""
    found = importlib.util.find_spec("certifi")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'certifi'", name="certifi")
    return os.path.join(found.submodule_search_locations[0], "cacert.pem")


def install() -> None:
    """Put the stand-ins in place, unless ``kubernetes`` has been imported already; raises ModuleNotFoundError without it."""
    if "kubernetes" in sys.modules:
        return
    found = importlib.util.find_spec("kubernetes")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'kubernetes'", name="kubernetes")
    for name in _HOMES:
        parent, _, child = name.rpartition(".")
        folder = "/".join([found.submodule_search_locations[0], *name.split(".")[1:]])
        package = _Package(name)
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        package.__spec__.submodule_search_locations = package.__path__ = [folder]
        package.__package__ = name
        sys.modules[name] = package
        if parent:
            setattr(sys.modules[parent], child, package)
    certs = types.ModuleType("requests.certs")
    certs.where = _find_certificates  # type: ignore[attr-defined]
    sys.modules.setdefault("requests.certs", certs)
