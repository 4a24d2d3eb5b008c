"""The archive as it is shipped: built anew, looked into, and started by every Python that is here."""

from __future__ import annotations

import ast
import hashlib
import os
import pwd
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import kubectl_gpu_transition

pytestmark = pytest.mark.xdist_group("zipapp")  # in one process: it is built once for all of them

ROOT = Path(__file__).parents[1]
EXECUTABLE = "kubectl-gpu_transition"


def find_pythons() -> dict[tuple[int, ...], str]:
    """Pythons of pyenv, where there is one, by version; and the one that runs this."""
    home = pwd.getpwuid(os.getuid()).pw_dir  # $HOME is the tests' own
    folder = Path(os.environ.get("PYENV_ROOT") or Path(home, ".pyenv"), "versions")
    found = {tuple(map(int, path.parents[1].name.split("."))): str(path) for path in folder.glob("[0-9].*[0-9]/bin/python")}
    return {**found, tuple(sys.version_info[:3]): sys.executable}


PYTHONS = find_pythons()
NEW = {".".join(map(str, version)): path for version, path in sorted(PYTHONS.items()) if version >= (3, 10)}
OLD = {".".join(map(str, version)): path for version, path in sorted(PYTHONS.items()) if version < (3, 10)}
OTHER = next(
    (path for version, path in sorted(PYTHONS.items()) if version >= (3, 10) and version[:2] != sys.version_info[:2]), sys.executable
)


def build(output: Path) -> Path:
    """Build into that folder, with bytecode for this Python and for at most one other."""
    script = str(ROOT / ".ci" / "build_zipapp.py")
    command = [sys.executable, script, "--output", str(output), "--python", OTHER, "--python", "no-such-python"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with everything that is built."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def names(dist: Path) -> list[str]:
    """The names of the archive's entries."""
    with zipfile.ZipFile(dist / EXECUTABLE) as archive:
        return archive.namelist()


def start(python: str, archive: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the archive with that Python, away from the source tree."""
    command = [python, "-W", "error", str(archive), *arguments]
    variables = {"PATH": os.environ["PATH"], "HOME": str(archive.parent), **environment}
    return subprocess.run(command, cwd=archive.parent, env=variables, capture_output=True, text=True, check=False)


def run_inside(python: str, archive: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run that code in place of the program, in a process that has been started as the archive starts itself."""
    with zipfile.ZipFile(archive) as opened:
        boot = opened.read("__main__.py").decode()
    prepare = boot[: boot.index("from kubectl_gpu_transition.__main__")]
    whole = f"import sys\nsys.path.insert(0, {str(archive)!r})\n{prepare}\n{code}"
    command = [python, "-W", "error", "-c", whole, *arguments]
    return subprocess.run(command, cwd=archive.parent, capture_output=True, text=True, check=False)


def imported_modules() -> list[str]:
    """Every module that a source file of ours imports, wherever in it, and every module of ours."""
    modules = set()
    for path in (ROOT / kubectl_gpu_transition.__name__).rglob("*.py"):
        modules.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module or "")
    return sorted(modules - {f"{kubectl_gpu_transition.__name__}.__main__"})


def test_two_builds_are_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """Whoever builds a release from the same sources with the same Pythons gets the archive that is in the index."""
    again = build(tmp_path)
    assert (again / EXECUTABLE).read_bytes() == (dist / EXECUTABLE).read_bytes()
    assert (again / f"{EXECUTABLE}.tar.gz").read_bytes() == (dist / f"{EXECUTABLE}.tar.gz").read_bytes()


def test_it_is_an_executable_file(dist: Path) -> None:
    """It starts by itself, with the ``python3`` of the user's PATH."""
    assert (dist / EXECUTABLE).read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert stat.S_IMODE((dist / EXECUTABLE).stat().st_mode) == 0o755


def test_nothing_in_it_is_compiled_for_one_machine(names: list[str]) -> None:
    """A zip can not load extension modules."""
    assert not [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]


def test_the_generated_client_and_tests_are_left_out(names: list[str]) -> None:
    """What is never imported is not shipped."""
    assert not [name for name in names if name.startswith(("kubernetes/client/models/", "kubernetes/client/api/")) or "/tests/" in name]
    assert len(names) < 450


def test_the_licence_of_every_package_is_in_it(names: list[str]) -> None:
    """Ours, and one for each package of the lock file."""
    lock = (ROOT / ".ci" / "requirements.lock").read_text()
    packages = {line.partition("==")[0].replace("-", "_").replace(".", "_") for line in lock.splitlines() if "==" in line}
    licensed = {name.partition("-")[0].lower().replace(".", "_") for name in names if ".dist-info/" in name}
    assert packages == licensed
    assert "LICENSE" in names


@pytest.mark.parametrize("version", NEW)
def test_it_starts_on_this_python(dist: Path, version: str) -> None:
    """With bytecode of its own or, as on two of three Pythons here, without."""
    done = start(NEW[version], dist / EXECUTABLE, "version")
    assert (done.returncode, done.stderr) == (0, "")
    assert kubectl_gpu_transition.__version__ in done.stdout


@pytest.mark.parametrize("version", NEW)
def test_whatever_our_sources_import_is_in_it(dist: Path, version: str) -> None:
    """Nothing that was left out is asked for, and nothing comes from the packages of this machine."""
    code = (
        "import importlib\n"
        "from kubectl_gpu_transition.adapters import lazyclient\n"
        "lazyclient.install()\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "for name in ('dulwich', 'kubernetes.client.rest', 'ruamel.yaml', 'urllib3'):\n"
        "    assert sys.modules[name].__spec__.origin.startswith(ARCHIVE), name\n"
    )
    done = run_inside(NEW[version], dist / EXECUTABLE, code, "kubernetes.client.rest", *imported_modules())
    assert (done.returncode, done.stderr) == (0, "")


def test_the_bytecode_is_what_runs(dist: Path) -> None:
    """This Python compiles nothing, and can still show the source of what it runs."""
    code = (
        "import builtins, importlib, inspect\n"
        "def refuse(*arguments, **options): raise AssertionError(arguments[1])\n"
        "zipimport.compile = refuse\n"
        "import dulwich.objects as module, kubectl_gpu_transition as package\n"
        "assert module.__file__ == ARCHIVE + '/dulwich/objects.py'\n"
        "assert package.__file__ == ARCHIVE + '/kubectl_gpu_transition/__init__.py'\n"
        "assert inspect.getsource(module.Tree).startswith('class Tree')\n"
    )
    done = run_inside(sys.executable, dist / EXECUTABLE, code)
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_of_the_machine_do_not_get_in(dist: Path, tmp_path: Path) -> None:
    """Neither PYTHONPATH nor what is installed can stand in for a package of the archive, or add one."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('not the one of Python')")
    (tmp_path / "ruamel").mkdir()
    (tmp_path / "ruamel" / "__init__.py").write_text("raise SystemExit('not the one of the archive')")
    done = start(sys.executable, dist / EXECUTABLE, "--help", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_old_python_is_told_in_one_line(dist: Path) -> None:
    """Exit code 2 and the version that is needed: on the old Pythons here, and on this one made to look like one."""
    code = f"import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path({str(dist / EXECUTABLE)!r}, run_name='__main__')"
    pretended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    for version, done in {"3.9.18": pretended, **{version: start(OLD[version], dist / EXECUTABLE) for version in OLD}}.items():
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert f"Python 3.10 or newer is needed, but python3 is {version}" in done.stderr


def test_what_krew_downloads(dist: Path) -> None:
    """Regular files with their modes, and a manifest with the checksum of the archive."""
    archive = dist / f"{EXECUTABLE}.tar.gz"
    with tarfile.open(archive) as opened:
        assert {(member.name, member.mode, member.isreg()) for member in opened} == {(EXECUTABLE, 0o755, True), ("LICENSE", 0o644, True)}
        extracted = opened.extractfile(EXECUTABLE)
        assert extracted is not None
        assert extracted.read() == (dist / EXECUTABLE).read_bytes()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = YAML(typ="safe", pure=True).load(dist / "krew-manifest.yaml")
    assert [platform["sha256"] for platform in manifest["spec"]["platforms"]] == [digest]
