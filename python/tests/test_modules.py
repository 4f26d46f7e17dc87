"""The package's own order: modules import in one direction, and the stub says every parameter's name and type."""

import ast
import pathlib

import multihead

FOLDER = pathlib.Path(multihead.__file__).parent


def modules():
    """Dotted name -> source file; the package itself is ""."""
    found = {}
    for file in sorted(FOLDER.rglob("*.py")):
        parts = file.relative_to(FOLDER).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(name, file, known):
    """The modules that a file imports, inside functions too."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = package.split(".") if package else []
        base = base[: len(base) - node.level + 1]
        target = ".".join([*base, *(node.module.split(".") if node.module else [])])
        for alias in node.names:
            inner = f"{target}.{alias.name}".lstrip(".")
            if inner in known:
                yield inner
            elif target in known and inner != "_core":
                yield target


def circle(graph):
    """The modules of a circle, or None."""
    done = set()

    def visit(name, path):
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return None
        for target in graph[name]:
            found = visit(target, [*path, name])
            if found:
                return found
        done.add(name)
        return None

    return next((found for found in (visit(name, []) for name in graph) if found), None)


def test_modules_import_in_one_direction():
    known = modules()
    graph = {name: sorted(set(imports_of(name, file, known)) - {name}) for name, file in known.items()}
    assert len(graph) > 30 and "_trace.values" in graph["_trace.functions"], "the imports are no longer found"
    assert circle(graph) is None


def test_a_circle_is_found():
    assert circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) is None


def functions(node, owner=""):
    for item in node.body:
        if isinstance(item, ast.ClassDef):
            yield from functions(item, f"{owner}{item.name}.")
        if isinstance(item, ast.FunctionDef):
            yield owner + item.name, item


def test_the_stub_names_and_types_every_parameter():
    loose = []
    for name, function in functions(ast.parse((FOLDER / "_core.pyi").read_text())):
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        bad = [a.arg for a in given if a.annotation is None and a.arg != "self"]
        last = name.rpartition(".")[2]
        if not (last.startswith("__") and last != "__init__"):
            bad += [f"**{arguments.kwarg.arg}"] if arguments.kwarg and last != "apply_chat_template" else []
        if function.returns is None:
            bad.append("return")
        if bad:
            loose.append((name, bad))
    assert not loose


def test_layers_and_stacks_say_their_options():
    signatures = dict(functions(ast.parse((FOLDER / "_core.pyi").read_text())))
    for name, options in {
        "TransformerLayer": {"embed_dim": "int", "query_bias": "bool | None", "scale": "float | None", "norm": "str"},
        "TransformerEncoder": {"num_layers": "int", "final_norm": "bool", "hidden_dim": "int | None"},
        "TransformerDecoder": {"num_layers": "int", "num_heads": "int"},
        "LanguageModelConfig": {"vocab_size": "int", "norm": "str", "rotary_base": "float"},
    }.items():
        keywords = {a.arg: ast.unparse(a.annotation) for a in signatures[f"{name}.__init__"].args.kwonlyargs}
        assert options.items() <= keywords.items(), name
