"""What the site needs beyond MkDocs' plugins: links and formulas of notebooks, and no request to any host."""

import html
import pathlib
import re

from latex2mathml.converter import convert

CODE = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)


def _mathml(match):
    block, inline = match.groups()
    return convert(html.unescape(block or inline), display="block" if block else "inline")


def _page_link(match, page):
    target = pathlib.Path(page.file.abs_src_path).parent / match[1]
    if not target.exists():
        raise FileNotFoundError(f"{page.file.src_uri}: the link to {match[1]} leads nowhere")
    return f'href="{pathlib.PurePosixPath(match[1]).with_suffix(".html")}"'


def on_page_content(content, page, **_):
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    content = re.sub(r'href="([^":#]+\.(?:md|ipynb))"', lambda match: _page_link(match, page), content)
    end, parts = 0, []
    for code in CODE.finditer(content):
        parts += [FORMULA.sub(_mathml, content[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, FORMULA.sub(_mathml, content[end:])])


def on_post_page(output, **_):
    return re.sub(r'<script src="https?://[^"]*"></script>', "", output)
