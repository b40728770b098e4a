# SPDX-License-Identifier: Apache-2.0
"""Check a built site: every link and anchor in it has a target, and every public name has an entry.

usage: docs/site/check_site.py SITE
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Page(html.parser.HTMLParser):
    """The ids of a page, and what it links to or shows."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(found[key] for key in ("id", "name") if found.get(key))
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


def broken(site, pages):
    """A line for each link within the site without a target."""
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = path
            if parts.path:
                target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if site not in target.parents or not target.exists():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif parts.fragment and target in pages and parts.fragment not in pages[target].ids:
                yield f"{path.relative_to(site)}: {link}: no such place"


def missing(site, pages):
    """A line for each public name of the library or the package that has no entry."""
    symbols = (ROOT / "tests" / "interface" / "symbols.txt").read_text().split()
    reference = {i for path, page in pages.items() if path.parent.name == "reference"
                 for i in page.ids}
    for name in symbols:
        if f"c.{name}" not in reference:
            yield f"no entry for {name}()"
    package = (ROOT / "python" / "gumbel" / "__init__.py").read_text(encoding="utf-8")
    exported = re.search(r"^__all__ = \[(.*?)\]", package, re.M | re.S)[1]
    for name in re.findall(r'"(\w+)"', exported):
        if f"gumbel.{name}" not in reference:
            yield f"no entry for gumbel.{name}"


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    faults = [*broken(site, pages), *missing(site, pages)]
    links = sum(len(page.links) for page in pages.values())
    print(*faults, f"site: {len(pages)} pages, {links} links, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
