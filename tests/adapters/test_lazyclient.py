"""The kubernetes client without its generated parts. Each case is a new process: what counts is what it has imported at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALL = """
import sys
from kubectl_gpu_transition.adapters import lazyclient
lazyclient.install()
"""


def run(code: str, *options: str) -> str:
    """Standard output of that code in a new process, after ``install()``; fails with what the process said."""
    command = [sys.executable, "-W", "error", *options, "-c", INSTALL + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_parts_that_we_use_load_and_the_generated_ones_do_not() -> None:
    """Configuration, transport and kubeconfig come in well under the 800 modules that the client's own __init__ imports."""
    modules = run(
        "import kubernetes.client.configuration, kubernetes.client.rest, kubernetes.config.kube_config\n"
        "print(*sorted(name for name in sys.modules if name.startswith('kubernetes')))"
    ).split()
    assert {"kubernetes.client.rest", "kubernetes.config.kube_config"} <= set(modules)
    assert not [name for name in modules if name.startswith(("kubernetes.client.api.", "kubernetes.client.models.", "kubernetes.dynamic"))]
    assert len(modules) < 20


def test_a_name_of_a_package_is_found_in_its_submodule() -> None:
    """What the client itself imports from its packages is the very thing that the submodule defines."""
    run(
        "from kubernetes.client import ApiClient, ApiException, Configuration\n"
        "from kubernetes.config import ConfigException, load_kube_config\n"
        "import kubernetes\n"
        "assert ApiClient is kubernetes.client.api_client.ApiClient\n"
        "assert ApiException is kubernetes.client.exceptions.ApiException\n"
        "assert Configuration is kubernetes.client.configuration.Configuration is kubernetes.client.Configuration\n"
        "assert ConfigException is kubernetes.config.config_exception.ConfigException\n"
        "assert load_kube_config is kubernetes.config.kube_config.load_kube_config\n"
        "with ApiClient(Configuration()) as client:\n"
        "    assert client.sanitize_for_serialization({'a': [1]}) == {'a': [1]}\n"
    )


def test_a_small_submodule_does_not_bring_its_neighbours() -> None:
    """Asking for the exec plugin's module does not load the kubeconfig reader, and with it OAuth."""
    run("import kubernetes.config.exec_provider\nassert not {'oauthlib', 'kubernetes.config.kube_config'} & set(sys.modules)")


def test_a_name_that_nobody_offers_is_an_attribute_error() -> None:
    """A stand-in fails as a module does, so that ``hasattr`` and ``from … import submodule`` work on it."""
    run(
        "import kubernetes.client\n"
        "assert not hasattr(kubernetes.client, 'CoreV1Api') and not hasattr(kubernetes, 'dynamic')\n"
        "from kubernetes.client import rest\n"
        "assert rest.__name__ == 'kubernetes.client.rest'\n"
    )


def test_installing_twice_changes_nothing() -> None:
    """The second call finds the stand-ins and leaves them and what they have loaded."""
    run(
        "import kubernetes.client.exceptions\nbefore = dict(sys.modules)\nlazyclient.install()\n"
        "assert all(sys.modules[name] is module for name, module in before.items())"
    )


def test_a_client_that_is_imported_already_stays() -> None:
    """A process that has the whole client, for whatever reason, keeps it."""
    code = (
        "import sys, types\n"
        "sys.modules['kubernetes'] = whole = types.ModuleType('kubernetes')\n"
        "from kubectl_gpu_transition.adapters import lazyclient\n"
        "lazyclient.install()\n"
        "assert sys.modules['kubernetes'] is whole and 'kubernetes.client' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_without_the_client_it_says_so() -> None:
    """An incomplete installation fails with the name of what is missing."""
    code = INSTALL.replace(
        "lazyclient.install()", "try:\n    lazyclient.install()\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() == "kubernetes"
