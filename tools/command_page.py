#!/usr/bin/env python3
"""Writes docs/commands.md, the command line's verbs and flags, from what `multihead VERB --help` prints.

    tools/command_page.py [--check] [COMMAND...]

COMMAND runs the program: build/gcc/multihead, or python -m multihead. The default is the newest program in build/.
With --check nothing is written; the exit status is 1 if the page is not what would be written.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "commands.md"
HEAD = """# Command line

<!-- Written by tools/command_page.py from the program's own help. -->

`pip install .` and `cmake --install` bring the program `multihead`; `python -m multihead` is the same. Every verb shows its flags and
examples with `--help`.

| Verb | What it does |
|---|---|
"""


def newest():
    programs = [*ROOT.glob("build/*/multihead"), *ROOT.glob("build/*/bin/multihead")]
    if not programs:
        sys.exit("tools/command_page.py: no program in build/; build it, or name a command that runs it")
    return [str(max(programs, key=lambda path: path.stat().st_mtime))]


def help_of(command, *verb):
    return subprocess.run([*command, *verb, "--help"], capture_output=True, text=True, check=True).stdout


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def entries(text):
    """(flag or argument, meaning) of the lines that begin with two spaces; further lines belong to the last one."""
    found = []
    for line in text.splitlines():
        match = re.match(r"  (\S.*?)  +(\S.*)$", line) if not line.startswith("    ") else None
        flag = re.match(r"  (--?[\w-]+(?:, --[\w-]+)?(?: (?:[A-Z][\w,:-]*|\S*\|\S*))?) +(.*)$", line)
        match = flag or match
        if match:
            found.append([match[1].strip(), match[2].strip()])
        elif found and line.startswith("    "):
            found[-1][1] += " " + line.strip()
    return [tuple(entry) for entry in found]


def read(command):
    """{verb: (what it does, usage, flags and arguments, examples)}"""
    verbs = {}
    for verb, about in entries(help_of(command).split("[arguments]")[1]):
        text = help_of(command, *verb.split())
        before, _, examples = text.partition("\nExamples\n")
        usage = next(line.strip() for line in before.splitlines() if line.startswith("  multihead"))
        verbs[verb] = (about, usage, entries(before.split(usage, 1)[1]), examples.rstrip())
    return verbs


def table(rows):
    return "".join(f"| `{name.replace('|', '&#124;')}` | {cell(meaning)} |\n" if "|" not in name else
                   f"| <code>{cell(name)}</code> | {cell(meaning)} |\n" for name, meaning in rows)  # fmt: skip


def page(verbs):
    common = [
        flag for flag in next(iter(verbs.values()))[2] if all(flag in flags for _, _, flags, _ in verbs.values())
    ]
    anchor = {verb: "multihead-" + verb.replace(" ", "-") for verb in verbs}
    text = HEAD + "".join(f"| [`{verb}`](#{anchor[verb]}) | {cell(about)} |\n" for verb, (about, *_) in verbs.items())
    if common:
        text += "\n## Flags of every verb\n\n| Flag | |\n|---|---|\n" + table(common)
    for verb, (about, usage, flags, examples) in verbs.items():
        text += f"\n## multihead {verb}\n\n{about[0].upper()}{about[1:]}.\n\n    {usage}\n"
        own = [flag for flag in flags if flag not in common]
        if own:
            text += "\n| Flag or argument | |\n|---|---|\n" + table(own)
        if examples:
            text += "\nExamples:\n\n" + "\n".join(f"  {line}".rstrip() for line in examples.splitlines()) + "\n"
    return text


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    text = page(read([a for a in arguments if a != "--check"] or newest()))
    if not check:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        sys.exit("docs/commands.md is not what the program's help says; run tools/command_page.py")


if __name__ == "__main__":
    main()
