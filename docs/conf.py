"""Sphinx configuration of the documentation: `make docs` writes the site to docs/_build."""

from pathlib import Path

from sphinx.application import Sphinx

from bertfam.config.registry import CONFIGURABLES
from bertfam.version import __version__

HERE = Path(__file__).parent

project = "bertfam"
copyright = "the bertfam authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"bertfam {version}"
html_copy_source = False

# Anchors of headings are those of GitHub, where the same pages are read.
myst_heading_anchors = 4
# Blocks without a language are commands and their output.
highlight_language = "text"
# Single backticks in docstrings are code, as they are in Markdown.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# Pages of the classes that gin binds: file, title, and the folders of the package.
PAGES = (
    ("models", "Models", ("models",)),
    ("objectives", "Objectives", ("objectives",)),
    ("noise", "Noise", ("corruption",)),
    ("text", "Text and rows", ("data",)),
    ("training", "Training", ("training", "layers", "sharding", "compression", "analysis")),
    ("studies", "Studies", ("studies",)),
)


def class_name(path: str) -> str:
    """Return the name of the class at a dotted path."""
    return path.rpartition(".")[2]


def page(title: str, paths: list[str]) -> str:
    """Return a page of classes, one a section."""
    sections = [f"## {class_name(path)}\n\n```{{eval-rst}}\n.. autoclass:: {path}\n```" for path in sorted(paths, key=class_name)]
    return "\n\n".join([f"# {title}", *sections]) + "\n"


def write_configurables(app: Sphinx) -> None:
    """Write the reference pages of the classes that gin binds, which the registry lists."""
    folder = HERE / "reference" / "gin"
    folder.mkdir(exist_ok=True)
    rest = set(CONFIGURABLES)
    for name, title, packages in PAGES:
        paths = [path for path in CONFIGURABLES if path.split(".")[1] in packages]
        rest -= set(paths)
        text, file = page(title, paths), folder / f"{name}.md"
        # An unchanged file is not parsed again.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    if rest:
        raise ValueError(f"docs/conf.py: PAGES has no page for {', '.join(sorted(rest))}; add the folder to one")


def setup(app: Sphinx) -> None:
    """Have the pages written before Sphinx reads them."""
    app.connect("builder-inited", write_configurables)
