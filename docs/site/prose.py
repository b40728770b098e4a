# SPDX-License-Identifier: Apache-2.0
"""Comments and docstrings as the library writes them, turned into reStructuredText.

A name, two spaces or more and its text, continued on indented lines, is a definition:

    hidden       [B, D] and weight [V, D]: float32, float16.
                 Rows may lie any distance apart.

A name alone, with its text indented on the next line, is also a definition. Other lines are
paragraphs.
"""

import re

NAMES = r"[A-Za-z_][\w.()*]*(?:, [A-Za-z_]\w*(?: and [A-Za-z_]\w*)?)*"
DEFINITION = re.compile(rf"^(?P<indent> *)(?P<name>{NAMES})(?:  +(?P<text>\S.*))?$")
QUOTED = re.compile(r"`([^`\n]+)`")
FUNCTION = re.compile(r"\b(gumbel_\w+)\(\)")
SPECIAL = re.compile(r"([\\*|_])(?=\W|$)|(?<!\w)([\\*|_])")


def inline(text, is_c=False):
    """A line's text with what RST would read as markup escaped; `names` stay code."""
    parts, end = [], 0
    for match in QUOTED.finditer(text):
        parts += [escaped(text[end : match.start()], is_c), f"``{match[1]}``"]
        end = match.end()
    return "".join([*parts, escaped(text[end:], is_c)])


def escaped(text, is_c):
    text = SPECIAL.sub(lambda match: "\\" + match[0], text)
    text = text.replace("`", "\\`")
    return FUNCTION.sub(r":c:func:`\1`", text) if is_c else text


def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def defined(lines, at):
    """The definition that begins at lines[at] as (name, texts, lines it takes), or None."""
    match = DEFINITION.match(lines[at])
    if not match:
        return None
    following = []
    for line in lines[at + 1 :]:
        if not line.strip() or indent_of(line) <= indent_of(lines[at]):
            break
        following.append(line.strip())
    # A word that ends a sentence's line looks like a name alone, but nothing stands further in.
    if match["text"] is None and not following:
        return None
    if match["text"] is None and at and lines[at - 1].strip():
        if indent_of(lines[at - 1]) == indent_of(lines[at]) and not DEFINITION.match(lines[at - 1]):
            return None
    texts = ([match["text"]] if match["text"] else []) + following
    return match["name"], texts, 1 + len(following)


def example_length(lines, at):
    """How many lines from here on are an example in Python."""
    length = 0
    while at + length < len(lines) and lines[at + length].strip():
        length += 1
    return length


def to_rst(lines, is_c=False):
    """Lines of RST for lines of a comment or docstring."""
    out, at, in_list = [], 0, False
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith(">>>"):
            taken = example_length(lines, at)
            code = [part.lstrip()[4:] for part in lines[at : at + taken]]
            out += ["", ".. code-block:: python", "", *("   " + part for part in code), ""]
            at, in_list = at + taken, False
            continue
        found = defined(lines, at)
        if found:
            name, texts, taken = found
            if not in_list:
                out.append("")
            out.append(", ".join(f"``{part}``" for part in re.split(", | and ", name)))
            out += ["   " + inline(text, is_c) for text in texts]
            at, in_list = at + taken, True
            continue
        if in_list and line.strip():
            out.append("")
        in_list = in_list and not line.strip()
        out.append(inline(line.strip(), is_c))
        at += 1
    return out
