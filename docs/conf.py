"""How the documentation is built: ``python3 dev.py docs``."""

import importlib.metadata
from typing import Any

from rdzv_conformance import catalogue

project = "rdzv"
copyright = "the rdzv authors. Licence: Apache-2.0"
release = version = importlib.metadata.version("rdzv")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# A block that a forge draws as it stands is a directive here; the reader's browser draws it.
myst_fence_as_directive = ["mermaid"]
mermaid_height = "auto"

# What is copied is what is typed: no prompt, no output.
copybutton_prompt_text = r"\$ |> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["rdzv.css"]
html_title = f"rdzv {release}"

# Docstrings say `name`; it becomes a link wherever there is something to link to.
default_role = "py:obj"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# As they stand in the source: a default such as os.environ would print the environment of the machine that builds.
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
# The fields of a record are described once, in its docstring.
napoleon_use_ivar = True


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("source-read", list_tests)


def list_tests(app: Any, page: str, source: list[str]) -> None:
    """Write the entries of the suite's tests, which are made of the tests themselves."""
    if page == "tests-of-a-backend":
        source[0] = source[0].replace("<!-- the entries -->", catalogue.page())


def keep_colons(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking the words before a colon for the type of an attribute or of a result."""
    # The types stand in the signatures; a colon of its own says that none stands here.
    for before, line in list(enumerate(lines))[:-1]:
        if line.strip() == "Returns:":
            text = lines[before + 1]
            lines[before + 1] = text.replace(text.lstrip(), f": {text.lstrip()}")
    if what in ("attribute", "data", "property"):
        lines[0] = f": {lines[0]}"
