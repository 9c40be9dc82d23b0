"""Structure of the package: import directions, import circles, and the sizes of functions and folders.

Each check has a list of known faults, which may only shrink: a new fault fails, and so does an entry that is clean by now.
`python tests/test_structure.py` prints the faults of today in the form of these lists.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_FUNCTION_LINES = 80
MAX_MAIN_LINES = 60
MAX_FOLDER_MODULES = 15

# From the lowest to the highest. A module imports from its own folder and from lower levels only; the folders of one level are
# independent of each other.
LEVELS = (
    ("errors", "interrupts", "features", "moved", "plurals", "subprocesses", "suggest", "version"),
    ("pages", "storage"),
    ("arguments", "call_arguments", "environment", "kernels"),
    ("layers",),
    ("compression", "corruption", "models", "retrieval", "sharding"),
    ("config",),
    ("multihost",),
    ("data",),
    ("objectives",),
    ("decoding",),
    ("interop",),
    ("training",),
    ("embedding", "finetuning"),
    ("api",),
    ("evaluation", "planning"),
    ("session",),
    ("analysis", "studies"),
    ("reports",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
# Pairs that the levels alone would allow.
FORBIDDEN = {("data", "models")}

# Known faults. Remove an entry with the fault; add none.
KNOWN_DIRECTIONS: set[tuple[str, str]] = set()
KNOWN_CIRCLES: set[tuple[str, ...]] = set()
KNOWN_LONG_FUNCTIONS: set[str] = set()
KNOWN_LONG_MAINS: set[str] = set()
KNOWN_FULL_FOLDERS: set[str] = set()

Graph = Mapping[str, frozenset[str]]


def read_modules(root: Path = ROOT) -> dict[str, tuple[str, ast.Module]]:
    """Return the path and the syntax tree of each module of the package, by its dotted name."""
    modules = {}
    for path in sorted((root / "bertfam").rglob("*.py")):
        relative = path.relative_to(root)
        parts = relative.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = (relative.as_posix(), ast.parse(path.read_text(), str(relative)))
    return modules


def import_graph(modules: Mapping[str, tuple[str, ast.Module]]) -> dict[str, frozenset[str]]:
    """Return the modules of the package that each module imports, at any depth of its code and for types as well.

    `from bertfam.data import rows` imports `bertfam.data.rows` where that is a module, and `bertfam.data` otherwise. The parents
    of an imported module do not count.
    """
    graph = {}
    for name, (path, tree) in modules.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    start = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*start, *filter(None, [node.module])])
                members = (f"{base}.{alias.name}" for alias in node.names)
                imported.update(member if member in modules else base for member in members)
        graph[name] = frozenset(imported & modules.keys()) - {name}
    return graph


def folder_of(module: str) -> str:
    """Return the folder or single module directly under bertfam/ that a module belongs to; "" for bertfam/__init__.py."""
    return ".".join(module.split(".")[1:2])


def upward_imports(graph: Graph) -> set[tuple[str, str]]:
    """Return the pairs (importer, imported) that point up or across the levels."""
    level = {folder: number for number, folders in enumerate(LEVELS) for folder in folders}
    return {
        (module, other)
        for module, imported in graph.items()
        for other in imported
        # bertfam/__init__.py imports the API when a user asks for it.
        if (source := folder_of(module)) != (target := folder_of(other)) and source
        if target and (level[target] >= level[source] or (source, target) in FORBIDDEN)
    }


def circles(graph: Graph) -> set[tuple[str, ...]]:
    """Return the groups of modules that import one another, directly or through others (strongly connected components)."""
    order: list[str] = []
    visited: set[str] = set()

    def visit(module: str, edges: Mapping[str, Iterable[str]], members: list[str]) -> None:
        # Iterative, since a chain of imports may be longer than Python's stack.
        stack: list[tuple[str, Iterator[str]]] = [(module, iter(edges[module]))]
        visited.add(module)
        while stack:
            current, others = stack[-1]
            following = next((other for other in others if other not in visited), None)
            if following is None:
                members.append(current)
                stack.pop()
            else:
                visited.add(following)
                stack.append((following, iter(edges[following])))

    for module in graph:
        if module not in visited:
            visit(module, graph, order)
    importers: dict[str, set[str]] = {module: set() for module in graph}
    for module, imported in graph.items():
        for other in imported:
            importers[other].add(module)
    visited.clear()
    groups = set()
    for module in reversed(order):
        if module not in visited:
            members: list[str] = []
            visit(module, importers, members)
            if len(members) > 1:
                groups.add(tuple(sorted(members)))
    return groups


def function_lengths(modules: Mapping[str, tuple[str, ast.Module]]) -> dict[str, int]:
    """Return the number of lines of each function and method, by "path:name"."""
    lengths = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    lengths[name] = (child.end_lineno or child.lineno) - child.lineno + 1
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    for path, tree in modules.values():
        visit(tree, f"{path}:")
    return lengths


def long_functions(lengths: Mapping[str, int]) -> set[str]:
    """Return the functions that are too long."""
    return {name for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}


def long_mains(lengths: Mapping[str, int]) -> set[str]:
    """Return the commands with a main function that is too long."""
    mains = {name: lines for name, lines in lengths.items() if name.startswith("bertfam/commands/") and name.endswith(":main")}
    return {name for name, lines in mains.items() if lines > MAX_MAIN_LINES}


def full_folders(paths: Iterable[str]) -> set[str]:
    """Return the folders with too many modules; a command or a family of models is one file, however many there are."""
    counts = Counter(path.rpartition("/")[0] for path in paths if not path.endswith("/__init__.py"))
    exempt = {"bertfam/commands", "bertfam/models"}
    return {folder for folder, count in counts.items() if count > MAX_FOLDER_MODULES and folder not in exempt}


@cache
def faults() -> dict[str, set]:
    """Return the faults of the package, by the name of the list that holds the known ones."""
    modules = read_modules()
    graph = import_graph(modules)
    lengths = function_lengths(modules)
    return {
        "KNOWN_DIRECTIONS": upward_imports(graph),
        "KNOWN_CIRCLES": circles(graph),
        "KNOWN_LONG_FUNCTIONS": long_functions(lengths),
        "KNOWN_LONG_MAINS": long_mains(lengths),
        "KNOWN_FULL_FOLDERS": full_folders(path for path, _ in modules.values()),
    }


def check(name: str) -> None:
    """Compare the faults of the package with the known ones."""
    current, known = faults()[name], globals()[name]
    assert not current - known, f"new: {sorted(current - known)}"
    assert not known - current, f"clean by now, remove from {name}: {sorted(known - current)}"


def toy_modules(**sources: str) -> dict[str, tuple[str, ast.Module]]:
    names = {name: "bertfam." + name.replace("__", ".") for name in sources}
    return {names[name]: (names[name].replace(".", "/") + ".py", ast.parse(source)) for name, source in sources.items()}


def test_imports_point_down_the_levels():
    check("KNOWN_DIRECTIONS")


def test_no_import_circles():
    check("KNOWN_CIRCLES")


def test_functions_are_short():
    check("KNOWN_LONG_FUNCTIONS")


def test_mains_of_commands_are_short():
    check("KNOWN_LONG_MAINS")


def test_folders_are_small():
    check("KNOWN_FULL_FOLDERS")


def test_names_of_test_files_are_unique():
    # pytest imports them as top-level modules, of which two cannot share a name.
    counts = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py"))
    assert not [name for name, count in counts.items() if count > 1]


def test_every_folder_has_a_level():
    folders = {folder_of(module) for module in read_modules()} - {""}
    assert not folders - {folder for level in LEVELS for folder in level}


def test_training_imports_neither_planning_nor_api():
    graph = import_graph(read_modules())
    imported = {(module, other) for module in graph if folder_of(module) == "training" for other in graph[module]}
    assert not [pair for pair in imported if folder_of(pair[1]) in ("planning", "api")]


def test_models_and_data_do_not_import_each_other():
    graph = import_graph(read_modules())
    pairs = {(folder_of(module), folder_of(other)) for module in graph for other in graph[module]}
    assert not pairs & {("models", "data"), ("data", "models")}


def test_finds_imports_for_types_within_functions_and_relative_ones():
    graph = import_graph(
        toy_modules(
            layers__norm="import os\nif TYPE_CHECKING:\n    from bertfam.models.bert import BertConfig\n",
            models__bert="def f():\n    import bertfam.data.rows\n",
            data__rows="from ..layers import norm\nfrom bertfam.errors import UserError\n",
            errors="",
        )
    )
    assert graph["bertfam.layers.norm"] == {"bertfam.models.bert"}
    assert graph["bertfam.models.bert"] == {"bertfam.data.rows"}
    assert graph["bertfam.data.rows"] == {"bertfam.layers.norm", "bertfam.errors"}
    assert upward_imports(graph) == {
        ("bertfam.layers.norm", "bertfam.models.bert"),
        ("bertfam.models.bert", "bertfam.data.rows"),
    }
    assert circles(graph) == {("bertfam.data.rows", "bertfam.layers.norm", "bertfam.models.bert")}


def test_finds_a_forbidden_pair_and_folders_of_one_level():
    graph = import_graph(
        toy_modules(
            models__bert="",
            data__rows="from bertfam.models import bert",
            planning__search="from bertfam.evaluation import perplexity",
            evaluation__perplexity="",
        )
    )
    assert upward_imports(graph) == {
        ("bertfam.data.rows", "bertfam.models.bert"),
        ("bertfam.planning.search", "bertfam.evaluation.perplexity"),
    }


def test_finds_long_functions_and_mains():
    def function(name: str, lines: int) -> str:
        return f"def {name}():\n" + "    pass\n" * (lines - 1)

    method = "class Cache:\n" + "".join(f"    {line}\n" for line in function("build", 81).splitlines())
    lengths = function_lengths(
        toy_modules(
            commands__cache=function("main", 61) + function("run", 80), data__cache=method, data__main=function("main", 80)
        )
    )
    assert long_functions(lengths) == {"bertfam/data/cache.py:Cache.build"}
    assert long_mains(lengths) == {"bertfam/commands/cache.py:main"}


def test_finds_full_folders():
    folders = {"data": 16, "data/rows": 15, "models": 20}
    paths = [f"bertfam/{folder}/m{number}.py" for folder, count in folders.items() for number in range(count)]
    assert full_folders([*paths, "bertfam/data/rows/__init__.py"]) == {"bertfam/data"}


if __name__ == "__main__":
    for list_name, entries in faults().items():
        sys.stdout.write(
            f"{list_name} = {{  # {len(entries)}\n" + "".join(f"    {entry!r},\n" for entry in sorted(entries)) + "}\n"
        )
