"""What the site needs beyond MkDocs' plugins: links and formulas of notebooks, and no request to any host."""

import ast
import html
import pathlib
import re

from latex2mathml.converter import convert

CODE = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.DOTALL)
TABLE_CODE = re.compile(r"<t[dh]\b[^>]*>.*?</t[dh]>", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)


PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python" / "multihead"


def _public_names(module):
    """{name: where it is defined} of what a module of the package offers; modules it imports have their own section."""
    place = PACKAGE / module.replace(".", "/")
    package = place / "__init__.py"
    tree = ast.parse((package if package.exists() else place.with_suffix(".py")).read_text("utf-8"))
    found, listed = {}, None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            source = f"{module.rpartition('.')[0]}.{node.module}".lstrip(".")  # beside this module
            known = {} if source == "_core" or package.exists() else _public_names(source)
            found |= {a.asname or a.name: known.get(a.name, f"multihead.{source}.{a.name}") for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = f"multihead.{module}.{node.name}"
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__" and isinstance(node.value, ast.List):
            listed = ast.literal_eval(node.value)
    return {name: path for name, path in found.items() if name in listed} if listed else {
        name: path for name, path in found.items() if not name.startswith("_")}  # fmt: skip


def _entry(name, path, stub):
    overloads = [node for node in stub.body if isinstance(node, ast.FunctionDef) and node.decorator_list
                 and path == f"multihead._core.{node.name}"]  # fmt: skip
    if not overloads:
        return f'::: {path}\n    options: {{heading: "{name}", toc_label: "{name}"}}\n'
    # mkdocstrings finds no function that a stub file declares only as overloads.
    signatures, seen = "", set()
    for node in overloads:
        arguments = re.split(r", (?=\w+:|[*/])", ast.unparse(node.args))
        new = [argument for argument in arguments if argument not in seen]  # of a further overload what differs
        lines = "\n".join(f"    {argument}," for argument in (["..."] if seen else []) + new)
        signatures += f"{node.name}(\n{lines}\n) -> {ast.unparse(node.returns)}\n"
        seen |= set(arguments)
    text = "\n\n".join(filter(None, (ast.get_docstring(node) for node in overloads)))
    return f"### {name}\n\n```python\n{signatures}```\n\n```text\n{text}\n```\n"


OPERATION = re.compile(r"^(?:inline )?(?:Tensor|std::vector<Tensor>|AddNorm|AttentionPart) ([a-z]\w*)\((.*?)\)(?: \{|;)", re.M | re.S)


def _operations():
    """A table of the functions of multihead/ops, by header."""
    folder, rows = PACKAGE.parents[1] / "multihead" / "ops", ["| Header | Operations |", "|---|---|"]
    for header in sorted(folder.rglob("*.h")):
        text = re.sub(r"^namespace (?:multihead::)?detail \{.*?^\}  // namespace", "", header.read_text("utf-8"), flags=re.M | re.S)
        calls = []
        for name, arguments in OPERATION.findall(text) if "-inl" not in header.name else ():
            words = re.sub(r"\bconst |[&*]|std::|Tensor |span<int> ", "", " ".join(arguments.split()))
            calls.append(f"`{name}({words})`")
        if calls:
            rows.append(f"| `ops/{header.relative_to(folder)}` | {'<br>'.join(calls)} |")
    return "\n".join(rows)


def on_page_markdown(markdown, page, **_):
    """`names of MODULE` in the Python reference becomes an entry for every public name, the comment in cpp.md a table."""
    if page.file.src_uri == "cpp.md":
        return markdown.replace("<!-- operations of multihead/ops -->", _operations())
    if page.file.src_uri != "api/python.md":
        return markdown

    stub = ast.parse((PACKAGE / "_core.pyi").read_text("utf-8"))

    def entries(match):
        prefix = "" if match[1] == "__init__" else f"{match[1]}."
        return "\n".join(_entry(prefix + name, path, stub) for name, path in
                         sorted(_public_names(match[1]).items(), key=lambda item: item[0].lower()))  # fmt: skip

    return re.sub(r"^names of (\w+)$", entries, markdown, flags=re.M)


def _mathml(match):
    block, inline = match.groups()
    source = html.unescape(block or inline).replace(r"\_", "_")  # latex2mathml keeps the backslash
    formula = convert(source, display="block" if block else "inline")
    return f'<span class="formula">{formula}</span>' if block else formula  # MathML itself does not scroll


def _page_link(match, page):
    target = pathlib.Path(page.file.abs_src_path).parent / match[1]
    if not target.exists():
        raise FileNotFoundError(f"{page.file.src_uri}: the link to {match[1]} leads nowhere")
    return f'href="{pathlib.PurePosixPath(match[1]).with_suffix(".html")}"'


def on_page_content(content, page, **_):
    if not page.file.src_uri.endswith(".ipynb"):
        # A bar in a table's code is escaped, and Markdown drops that backslash only outside of code.
        return TABLE_CODE.sub(lambda match: match[0].replace("\\|", "|"), content)
    content = re.sub(r'href="([^":#]+\.(?:md|ipynb))"', lambda match: _page_link(match, page), content)
    end, parts = 0, []
    for code in CODE.finditer(content):
        parts += [FORMULA.sub(_mathml, content[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, FORMULA.sub(_mathml, content[end:])])


def on_post_page(output, **_):
    return re.sub(r'<script src="https?://[^"]*"></script>', "", output)
