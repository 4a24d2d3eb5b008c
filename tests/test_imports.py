"""Who may import what (the direction of imports): read from the source with ast, nothing is run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "kubectl_gpu_transition"
PACKAGE = ROOT.name
CORE = {
    *("modes", "failures", "model", "views", "gates", "holders", "marks", "record", "rule", "target", "resume", "checks", "plan"),
    *("patches", "report", "ports", "facts", "kinds", "flux", "live_rule", "stack", "advice", "allocatable", "status"),
}
ENGINE = {"engine", "session", "writes", "pushing", "waiting", "truth", "progress", "survey"}
API = {"cluster", "watch", "lazyclient", "kubeconfig"}
ALONE = {"clock", "signals", "terminal"}  # adapters that use no other adapter
GIT = {path.stem for path in (ROOT / "adapters").glob("*.py")} - API - ALONE  # the git adapters are one family
IMPURE = {"os", "sys", "time", "signal", "subprocess", "socket", "tempfile", "shutil", "pathlib", "io", "datetime", "random", "uuid"}
# Of the rest of the world: who may use it. urllib3 is also what dulwich speaks https with.
ALLOWED = {
    "kubernetes": API,
    "yaml": API,
    "urllib3": API | {"githttp", "transport"},
    "dulwich": GIT,
    "ruamel": {"rule", "cli"},
    "jsonpatch": {"rule"},
    "argcomplete": {"cli", "completion"},
}
MODULES = {path.stem if path.parent == ROOT else f"adapters.{path.stem}": path for path in ROOT.rglob("*.py") if path.stem != "__init__"}


def imports(path: Path) -> set[str]:
    """Every module that the file imports anywhere, ours without the package's name, a member of a package as a module of it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert all(alias.name != "*" for alias in node.names)
            inside = node.module in (PACKAGE, f"{PACKAGE}.adapters")
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if inside else {str(node.module)}
    return {name.removeprefix(f"{PACKAGE}.") for name in found}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_place_allows(module: str) -> None:
    name = module.removeprefix("adapters.")
    used = imports(MODULES[module])
    ours = {other for other in used if other in MODULES}
    outside = {other.split(".")[0] for other in used - ours}
    for library, users in ALLOWED.items():
        assert library not in outside or name in users, f"{module} uses {library}"
    assert "cli" not in ours or module == "__main__"
    if module in CORE:
        assert ours <= CORE
        assert not outside & IMPURE
    elif module in ENGINE:
        assert ours <= CORE | ENGINE
        assert not outside & IMPURE
    elif module.startswith("adapters."):
        family = next((family for family in (GIT, API) if name in family), {name})
        assert {other.removeprefix("adapters.") for other in ours if other.startswith("adapters.")} <= family
        assert not ours & (ENGINE | {"checks", "resume", "target", "cli"})
    else:
        assert module in ("cli", "__main__", "completion"), "a new module has to be given its place here"


def test_the_core_opens_no_files() -> None:
    for module in CORE | ENGINE:
        calls = [node.func for node in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id in ("open", "print", "input", "exec", "eval")], module
