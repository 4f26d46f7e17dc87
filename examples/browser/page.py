#!/usr/bin/env python3
"""Puts the page together: one HTML file that holds the module, the weights and the digits, and fetches nothing.

  examples/browser/page.py MODULE.js DATA.json PAGE.json OUT.html    MODULE.wasm lies beside MODULE.js
"""

import base64
import gzip
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def packed(name, content):
    """Bytes as an element of the page."""
    text = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def replaced(page, what, by):
    """The page with the one place called `what` filled."""
    if page.count(what) != 1:
        sys.exit(f"page.py: the page has {page.count(what)} places with {what!r}, expected one")
    return page.replace(what, by)


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


def main(module, data, page, out):
    module = pathlib.Path(module)
    html = json.loads(pathlib.Path(page).read_text(encoding="utf-8"))["html"]
    html = replaced(html, "script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'wasm-unsafe-eval'; worker-src blob:")
    html = replaced(html, "connect-src 'self'", "connect-src 'none'")
    html = replaced(html, "</head>", f"<style>\n{read('browser.css')}</style>\n</head>")
    html = replaced(html, '<div id="bar">', read("digits.html") + '<div id="bar">')
    parts = packed("wasm", module.with_suffix(".wasm").read_bytes()) + packed("pack", pathlib.Path(data).read_bytes())
    worker = module.read_text(encoding="utf-8") + read("worker.js")
    parts += f'<script type="text/plain" id="worker">\n{worker}</script>\n<script>\n{read("browser.js")}</script>\n'
    last = html.rindex("<script>")  # the page's own, which asks at once
    pathlib.Path(out).write_text(html[:last] + parts + html[last:], encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
