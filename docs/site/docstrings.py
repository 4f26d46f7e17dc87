"""Docstrings as pages: aligned tables (Shapes, Dtypes, Options) stay aligned, and a * is a product."""

import re

import griffe

ALIGNED = re.compile(r"^\S+(?: \S+)*  +\S|^ {2,}\S", re.M)


def _paragraph(text):
    return f"```text\n{text}\n```" if ALIGNED.search(text) else text.replace("*", "\\*").replace("_", "\\_")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if not obj.is_alias and obj.docstring and "```" not in obj.docstring.value:
            obj.docstring.value = "\n\n".join(map(_paragraph, obj.docstring.value.strip("\n").split("\n\n")))
