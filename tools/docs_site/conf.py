"""Sphinx's configuration of the site. make_site.py copies the pages to where Sphinx reads them, and runs it."""

import importlib
import os
import pathlib
import re
import sys

from docutils import nodes
from sphinx import addnodes
from sphinx.ext.autodoc.mock import MockFinder
from sphinx.pycode import ModuleAnalyzer

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "bridge" / "torch"), str(HERE), str(HERE.parent)]
sys.dont_write_bytecode = True
from check_face import names_by_header  # noqa: E402
from plain_text import to_rst  # noqa: E402

project = "rankloom"
version = release = re.search(r"version: '([\d.]+)'", (ROOT / "meson.build").read_text()).group(1)
copyright = "the rankloom authors, Apache-2.0"
extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
highlight_language = "text"
smartquotes = False
suppress_warnings = ["misc.highlighting_failure"]  # code in comments leaves out what is not its subject: "..."

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

breathe_projects = {"rankloom": os.environ["RANKLOOM_DOCS_XML"]}
breathe_default_project = "rankloom"
breathe_show_include = False
cpp_index_common_prefix = ["rankloom::"]
cpp_maximum_signature_line_length = 96
python_maximum_signature_line_length = 96

# rankloom.torch is read without torch and without its extension: any attribute of these stands for itself.
sys.meta_path.insert(0, MockFinder(["torch", "rankloom.torch._ext", "rankloom.torch._torch_version", "expecttest", "pytest", "numpy"]))
importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"rankloom {version}"
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = False  # reads pages by fetch, which a browser refuses for files: search works without a server
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5394", "color-brand-content": "#0b5394"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

PUBLIC = {name for names in names_by_header(ROOT).values() for name in names}


def target_of(text):
    """The name in the reference of a name in backticks; None if that is no public name."""
    found = re.fullmatch(r"(?:rankloom::)?((\w+)(?:::~?\w+)*)(?:\(\))?", text)
    return f"rankloom::{found.group(1)}" if found and found.group(2) in PUBLIC else None


def link_names(app, document):
    """Public names in backticks lead to their entries in the reference, where there is one."""
    if app.env.current_document.docname in ("reference/python", "docs/pytorch"):
        return  # Python's names are the same
    for literal in list(document.findall(nodes.literal)):
        target = target_of(literal.astext())
        if target is None or isinstance(literal.parent, nodes.reference | addnodes.pending_xref | nodes.title):
            continue
        link = addnodes.pending_xref("", refdomain="cpp", reftype="any", reftarget=target, refexplicit=True, refwarn=False)
        link["refdoc"] = app.env.current_document.docname
        literal.replace_self(link)
        link += literal


def plain_docstring(_app, _what, _name, _object, _options, lines):
    lines[:] = [*to_rst(lines, "python"), ""]


def read_fields(self, source, modname, srcname, read=ModuleAnalyzer.__init__):
    """The comment behind a field of a class is its documentation: "ok: bool  # ..."."""
    read(self, re.sub(r"^( +\w+: [^#\n]*)  # (?!type: |noqa)", r"\1  #: ", source, flags=re.MULTILINE), modname, srcname)


ModuleAnalyzer.__init__ = read_fields


def setup(app):
    app.connect("doctree-read", link_names)
    app.connect("autodoc-process-docstring", plain_docstring)
