#!/usr/bin/env python3
"""Makes the site of the documentation: the pages as chapters, and the reference of the public headers and of rankloom.torch.

    tools/docs_site/make_site.py OUTPUT [ROOT]

Needs Doxygen, Universal Ctags, and the Python packages that ./dev docs installs. Nothing is loaded from a network, neither here nor
by the pages in a browser. OUTPUT/html is the site; OUTPUT/source and OUTPUT/xml are what it was made from. Exits with 1 for any
warning, for a link that leads nowhere, for something that a page loads from elsewhere, and for a public name without an entry.
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
from xml.etree import ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
sys.dont_write_bytecode = True
from check_face import names_by_header  # noqa: E402
from comments import floating, of_namespace  # noqa: E402
from plain_text import to_rst  # noqa: E402

# The chapters, in the order of a user's day. A page that stands in none is an error.
CHAPTERS = {
    "Start": ["docs/first-hour", "docs/project", "docs/testing", "docs/calls", "docs/pytorch", "docs/ci"],
    "When something is wrong": ["docs/hangs", "docs/differs", "docs/debugger", "docs/errors", "docs/run-files"],
    "All schedules": ["docs/exploring", "docs/determinism"],
    "Without the machines": ["docs/fake", "docs/streams", "docs/cuda", "docs/cluster", "docs/stores", "docs/performance"],
    "Reference": ["reference/cpp", "reference/python", "docs/words"],
    "The project": ["docs/architecture", "docs/reliability", "docs/decisions/index", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT",
                    "packaging/THIRD_PARTY"],
}

# The subject of each header, in the order of the reference.
HEADERS = {
    "world": "Worlds and ranks",
    "options": "Options of a world",
    "process_group": "Groups and their calls",
    "work": "Works: calls on their way",
    "tensor": "Tensors and dtypes",
    "collective_call": "A call as data",
    "group": "Who is in a group",
    "device_mesh": "Meshes",
    "store": "Stores",
    "error": "Errors",
    "testing": "Fixtures for GoogleTest",
    "matchers": "Matchers for GoogleTest",
    "schedule": "Schedules and traces",
    "explore": "Searching schedules",
    "faults": "Faults",
    "sync": "Locks and waits",
    "random": "Random numbers",
    "fake": "Fake groups",
    "records": "Records of calls, traces, dumps",
    "chakra": "Chakra traces",
    "stream": "Streams",
    "cuda": "CUDA",
    "mpi": "Ranks that are MPI processes",
    "version": "The version",
    "rankloom": "The header of all headers",
}

PYTHON = """# Python: rankloom.torch

The bridge to PyTorch; [what of PyTorch passes on it](../docs/pytorch.md).

```{eval-rst}
.. automodule:: rankloom.torch
   :members:
   :imported-members:
   :undoc-members:
   :exclude-members: MultiThreadedTestCase, spawn_threads_and_init_comms, annotations

rankloom.torch.testing
----------------------

.. automodule:: rankloom.torch.testing
   :members:
   :exclude-members: FakeStore

The plugin of pytest
--------------------

.. automodule:: rankloom.pytest_plugin
```
"""


def page_files(root):
    """The pages of the site, as paths from the root."""
    names = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("docs/decisions/*.md"), root / "packaging/THIRD_PARTY.md"]
    return sorted(path.relative_to(root).as_posix() for path in names if path.is_file())


def toctree(caption, entries):
    options = [f":caption: {caption}", ":hidden:"] if caption else [":maxdepth: 1"]
    return "\n".join(["```{toctree}", *options, "", *entries, "```", ""])


def copy_pages(root, source):
    """Copies the pages beside each other as they stand, so that the links between them hold; README.md is the front page."""
    for name in page_files(root):
        if name == "docs/README.md":
            continue
        text = (root / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", text)
        # A folder or a file that is no page stands in the checkout, and not in the site.
        for link in re.finditer(r"\[([^\]]+)\]\((?!https?:)([^)\s#]+)\)", text):
            if not leads_into_site(root, name, link.group(2)):
                text = text.replace(link.group(0), link.group(1))
        if name == "README.md":
            text += "\n" + "\n".join(toctree(caption, entries) for caption, entries in CHAPTERS.items())
        target = source / ("index.md" if name == "README.md" else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    shutil.copytree(root / "docs" / "images", source / "docs" / "images")
    decisions = sorted(path.stem for path in (root / "docs/decisions").glob("*.md"))
    (source / "docs/decisions/index.md").write_text("# Decisions\n\nWhy things are as they are.\n\n" + toctree("", decisions), encoding="utf-8")


def leads_into_site(root, page, target):
    path = os.path.normpath(os.path.join(os.path.dirname(page), target))
    return path in (*page_files(root), "index.md", "docs/index.md") or path.endswith((".png", ".svg"))


def compounds(xml):
    """Kind of each class, struct and namespace, by name."""
    return {found.findtext("name"): found.get("kind") for found in ElementTree.parse(xml / "index.xml").iter("compound")}


def members(xml, namespace, header=None):
    """Breathe's directives for the functions, enums and constants of a namespace (of one header), by name."""
    found = {}
    for member in ElementTree.parse(xml / f"namespace{namespace.replace('::', '_1_1')}.xml").iter("memberdef"):
        if header is None or member.find("location").get("file") == f"rankloom/{header}":
            found.setdefault(member.findtext("name"), []).append(member)
    return {name: [directive(member, f"{namespace}::{name}", len(overloads) > 1) for member in overloads] for name, overloads in found.items()}


def directive(member, name, overloaded):
    types = ["".join(parameter.find("type").itertext()) for parameter in member.findall("param")]
    return f".. doxygen{member.get('kind')}:: {name}{'(' + ', '.join(types) + ')' if overloaded else ''}"


def namespace_entries(xml, full, header):
    """The names of a header in a namespace within rankloom."""
    for inner in ElementTree.parse(xml / f"namespace{full.replace('::', '_1_1')}.xml").iter("innerclass"):
        if f'file="rankloom/{header}"' in (xml / f"{inner.get('refid')}.xml").read_text(encoding="utf-8"):
            yield from class_entry(xml, inner.text)
    for overloads in members(xml, full, header).values():
        yield from overloads


def class_entry(xml, full):
    return [f".. doxygen{compounds(xml)[full]}:: {full}", "   :members:", "   :undoc-members:"]


def entries(xml, names, header):
    """Breathe's directives for the public names of a header."""
    kinds, inside = compounds(xml), members(xml, "rankloom")
    for name in names:
        full = f"rankloom::{name}"
        if kinds.get(full) in ("class", "struct"):
            yield from class_entry(xml, full)
        elif kinds.get(full) == "namespace":
            yield from namespace_entries(xml, full, header)
        else:
            yield from inside.get(name, [])
        yield ""


def write_reference(root, source, xml):
    by_header = names_by_header(root)
    folder = source / "reference"
    folder.mkdir()
    rows = [f"| [{title}]({name}.md) | `<rankloom/{name}.h>` | {', '.join(f'`{entry}`' for entry in sorted(by_header[name + '.h']))} |"
            for name, title in HEADERS.items()]
    index = ["# C++: the public headers", "",
             "`<rankloom/rankloom.h>` includes those of the core, `<rankloom/testing.h>` the side for GoogleTest. All names stand in "
             "namespace `rankloom`.", "",
             "Most functions have one parameter more than is shown here, their last: `CodeSite code = CodeSite::here()`, the line of "
             "their caller, which reports name. Nobody needs to give it.", "",
             "| about | header | names |", "| --- | --- | --- |", *rows, "", "```{toctree}", ":hidden:", "", *HEADERS, "```", ""]
    (folder / "cpp.md").write_text("\n".join(index), encoding="utf-8")
    for name, title in HEADERS.items():
        text = (root / "include/rankloom" / f"{name}.h").read_text(encoding="utf-8")
        lines = [f"# {title}", "", f"`#include <rankloom/{name}.h>`", ""]
        for comment in [*floating(text), *filter(None, (of_namespace(text, entry) for entry in by_header[f"{name}.h"]))]:
            lines += ["```{eval-rst}", *to_rst(comment, "cpp"), "```", ""]
        lines += ["```{eval-rst}", *entries(xml, by_header[f"{name}.h"], f"{name}.h"), "```", ""]
        (folder / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
    (folder / "python.md").write_text(PYTHON, encoding="utf-8")


def run_doxygen(root, output):
    settings = (HERE / "Doxyfile").read_text(encoding="utf-8") + f"""
INPUT = "{root}/include/rankloom"
STRIP_FROM_PATH = "{root}/include"
STRIP_FROM_INC_PATH = "{root}/include"
OUTPUT_DIRECTORY = "{output}"
INPUT_FILTER = "{sys.executable} {HERE}/comments.py"
"""
    subprocess.run(["doxygen", "-"], input=settings, text=True, check=True)
    for file in (output / "xml").glob("class*.xml"):
        sort_sections(file)


def sort_sections(file):
    """Doxygen puts a class's own sections (@name) in an order of its own; here they stand as in the header."""
    tree = ElementTree.parse(file)
    for compound in tree.iter("compounddef"):
        sections = [section for section in compound.findall("sectiondef") if section.get("kind") == "user-defined"]
        places = sorted(list(compound).index(section) for section in sections)
        sections.sort(key=lambda section: min(int(place.get("line")) for place in section.iter("location")))
        for place, section in zip(places, sections, strict=True):
            compound[place] = section
    tree.write(file, encoding="utf-8")


class Links(html.parser.HTMLParser):
    """The files that a page loads, its links, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.leads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(filter(None, (given.get("id"), given.get("name"))))
        if tag == "a" and given.get("href"):
            self.leads.append(given["href"])
        elif given.get("src"):
            self.loads.append(given["src"])
        elif tag == "link" and given.get("href") and given.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loads.append(given["href"])


def check_links(site):
    """A line for each link between pages that leads nowhere, and for what a page loads from elsewhere."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in [*page.leads, *page.loads]:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme == "data" or (parts.scheme and target in page.leads):
                continue
            name = path.relative_to(site).as_posix()
            if parts.scheme or parts.netloc:
                yield f"{name}: loads {target}"
                continue
            file = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not file.is_file():
                yield f"{name}: link to {target}, which does not exist"
            elif parts.fragment and file in pages and urllib.parse.unquote(parts.fragment) not in pages[file].ids:
                yield f"{name}: link to {target}: no such place in the page"


def check_entries(root, site):
    """A line for each public name that has no entry in the reference."""
    ids = {name for path in (site / "reference").glob("*.html") for name in Links(path.read_text(encoding="utf-8")).ids}
    for header, names in names_by_header(root).items():
        for name in names:
            # As the ABI of C++ writes rankloom::run_world, Sphinx's ids have it: _CPPv4N8rankloom9run_worldE...
            entry = re.compile(rf"_CPPv4I?.*N8rankloom{len(name)}{name}(E|I|\d)")
            if not any(entry.match(one) for one in ids):
                yield f"include/rankloom/{header}: {name} has no entry in the reference"


def check_contents(root):
    """The names that CHAPTERS and HEADERS lack, or have and the tree has not."""
    pages = {name.removesuffix(".md") for name in page_files(root)} - {"README", "docs/README"}
    wanted = {page for page in pages if not page.startswith("docs/decisions/")}
    made = {"reference/cpp", "reference/python", "docs/decisions/index"}
    chapters = {entry for entries in CHAPTERS.values() for entry in entries} - made
    names = {path.stem for path in (root / "include/rankloom").glob("*.h")}
    return [*(f"{page}.md: stands in no chapter of tools/docs_site/make_site.py" for page in sorted(wanted - chapters)),
            *(f"tools/docs_site/make_site.py: CHAPTERS: {page} does not exist" for page in sorted(chapters - wanted)),
            *(f"tools/docs_site/make_site.py: HEADERS and include/rankloom differ in {name}.h" for name in sorted(names ^ set(HEADERS)))]


def check_yaml(root):
    """A line for each block of YAML that is none."""
    import yaml  # MyST-Parser's

    for name in page_files(root):
        text = (root / name).read_text(encoding="utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            try:
                yaml.safe_load(block.group(1))
            except yaml.YAMLError as wrong:
                yield f"{name}:{text.count(chr(10), 0, block.start()) + 1}: {wrong}"


def main(arguments):
    output = pathlib.Path(arguments[0]).resolve()
    root = pathlib.Path(arguments[1]).resolve() if arguments[1:] else HERE.parents[1]
    for folder in ("source", "xml", "html"):
        shutil.rmtree(output / folder, ignore_errors=True)
    source, site = output / "source", output / "html"
    source.mkdir(parents=True)
    wrong = check_contents(root)
    if wrong:
        raise SystemExit("\n".join(wrong))
    copy_pages(root, source)
    run_doxygen(root, output)
    write_reference(root, source, output / "xml")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-c", HERE, "-d", output / "doctrees", source, site]
    done = subprocess.run(command, check=False, env=os.environ | {"RANKLOOM_DOCS_XML": str(output / "xml"), "PYTHONDONTWRITEBYTECODE": "1"})
    if done.returncode != 0:
        return 1
    findings = [*check_links(site), *check_entries(root, site), *check_yaml(root)]
    print("\n".join(findings) or f"docs: {len(list(site.rglob('*.html')))} pages, open {os.path.relpath(site / 'index.html')}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
