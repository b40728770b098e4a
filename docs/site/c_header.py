# SPDX-License-Identifier: Apache-2.0
"""The directive `c-header`: the reference of a header, by what libclang reads in it.

Each function, struct, enumeration, type and macro stands with its comment; of structs and
enumerations the source follows, whose fields explain themselves there. Two declarations without a
blank line between them share the comment above the first.
"""

import pathlib
import re

import clang.cindex
from clang.cindex import CursorKind
from sphinx.util.docutils import SphinxDirective

import prose

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
SECTION = re.compile(r"^/\* [-=]{3,} *(.*?) *[-=]{3,} \*/$")
NO_MACROS = re.compile(r"GUMBEL_(\w+_H|API|CALL|SHARED|EXPERIMENTAL)$")


def comment_above(lines, line):
    """The comment whose last line is the one above `line` (from 1 on), without its frame."""
    end = line - 2
    if end < 0 or not re.match(r"(/\*| \*).*\*/$", lines[end]):
        return None
    begin = end
    while begin > 0 and not lines[begin].lstrip().startswith("/*"):
        begin -= 1
    if SECTION.match(lines[begin]) or not lines[begin].startswith("/*"):
        return None
    text = [re.sub(r"^ ?\*/?", "", part) for part in lines[begin : end + 1]]
    text[0] = re.sub(r"^/\*", "", text[0])
    text[-1] = re.sub(r" *\*/$", "", text[-1])
    return [re.sub(r"^ ", "", part.rstrip()) for part in text]


def declarations(header):
    """(first line, last line, kind, name) of all that a header declares, in its order."""
    options = clang.cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
    arguments = ["-x", "c", "-std=c17", f"-I{INCLUDE}", "-DGUMBEL_UNSTABLE", "-ffreestanding"]
    unit = clang.cindex.Index.create().parse(str(header), arguments, options=options)
    for problem in unit.diagnostics:
        if "file not found" not in problem.spelling and problem.severity >= 3:
            raise ValueError(f"{header}: {problem}")
    found = {}
    kinds = {
        CursorKind.FUNCTION_DECL: "function",
        CursorKind.TYPEDEF_DECL: "type",
        CursorKind.STRUCT_DECL: "struct",
        CursorKind.ENUM_DECL: "enum",
        CursorKind.MACRO_DEFINITION: "macro",
    }
    for cursor in unit.cursor.get_children():
        place = cursor.location.file
        if not place or pathlib.Path(place.name) != header or cursor.kind not in kinds:
            continue
        kind, name = kinds[cursor.kind], cursor.spelling
        if kind == "macro" and NO_MACROS.match(name):
            continue
        # `typedef struct x {...} x;` is a struct; the typedef of it says nothing more.
        if (cursor.extent.start.line, name) not in found:
            extent = cursor.extent.start.line, cursor.extent.end.line
            found[extent[0], name] = (*extent, kind, name)
    return sorted(found.values())


def signature(lines, first, last, kind, name):
    """What the C domain of Sphinx reads; its own macros are spelled out."""
    if kind in ("struct", "enum"):
        return name
    text = " ".join(part.strip() for part in lines[first - 1 : last])
    if kind == "macro":
        inside = re.match(rf"#define {name}(\([^)]*\))?", text)
        return name + (inside[1] or "")
    text = text.replace("GUMBEL_CALL", "gumbel_status").replace("GUMBEL_API ", "").rstrip(";")
    return text.removeprefix("typedef ")


def indented(lines):
    return ["   " + line if line else "" for line in lines]


def entry(lines, declared, comment):
    first, last, kind, _ = declared
    out = [f".. c:{kind}:: {signature(lines, *declared)}", ""]
    if comment:
        out += indented(prose.to_rst(comment, is_c=True)) + [""]
    if kind in ("struct", "enum", "macro"):
        source = lines[first - 1 : last]
        out += ["   .. code-block:: c", "", *indented(indented(source)), ""]
    return out


def reference(header):
    """A header as lines of RST."""
    lines = header.read_text(encoding="utf-8").splitlines()
    sections = {i: SECTION.match(line)[1] for i, line in enumerate(lines, 1) if SECTION.match(line)}
    begin = lines.index("/* SPDX-License-Identifier: Apache-2.0")
    end = next(i for i, line in enumerate(lines) if line.rstrip().endswith("*/"))
    head = [re.sub(r"^ \*/? ?", "", line) for line in lines[begin + 1 : end]]
    out = [".. code-block:: text", "", *indented(head), ""]
    comment, above, known = None, -2, 0
    for declared in declarations(header):
        for line in sorted(at for at in sections if known < at < declared[0]):
            title = sections[line].capitalize()
            out += [title, "-" * len(title), ""]
            known = line
        found = comment_above(lines, declared[0])
        if found is None and declared[0] == above + 1 and declared[2] != "macro":
            found = comment
        comment, above = found, declared[1]
        out += entry(lines, declared, comment)
    return out


class CHeader(SphinxDirective):
    """`.. c-header:: gumbel/gumbel.h`"""

    required_arguments = 1

    def run(self):
        header = INCLUDE / self.arguments[0]
        self.env.note_dependency(str(header))
        text = "\n".join(reference(header))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app):
    app.add_directive("c-header", CHeader)
    return {"parallel_read_safe": True, "version": "1"}
