#!/usr/bin/env python3
"""Writes manual pages from the program's own help: multihead.1.gz and one page a verb, multihead-train-lm.1.gz.

    packaging/man_pages.py PROGRAM FOLDER
"""

import gzip
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import command_page  # noqa: E402


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def heading(name, version):
    return f'.TH {name.upper().replace("-", chr(92) + "-")} 1 "" "{version}" "User Commands"\n'


def name_of(verb):
    return "multihead-" + verb.replace(" ", "-")


def items(entries):
    return "".join(f".TP\n.B {roff(name)}\n{roff(meaning)}\n" for name, meaning in entries)


def verb_page(verb, about, usage, flags, examples, version):
    text = heading(name_of(verb), version)
    text += f".SH NAME\n{roff(name_of(verb))} \\- {roff(about)}\n.SH SYNOPSIS\n.B {roff(usage)}\n"
    text += ".SH OPTIONS\n" + items(flags)
    if examples:
        text += f".SH EXAMPLES\n.nf\n{roff(examples)}\n.fi\n"
    return text + ".SH SEE ALSO\n.BR multihead (1)\n"


def main_page(verbs, version):
    text = heading("multihead", version)
    text += ".SH NAME\nmultihead \\- train and run Transformers on a CPU\n"
    text += ".SH SYNOPSIS\n.B multihead\n.I VERB\n[arguments]\n.SH VERBS\n"
    text += items((verb, f"{about}; multihead {verb} --help") for verb, (about, *_) in verbs.items())
    pages = ",\n".join(f".BR {roff(name_of(verb))} (1)" for verb in verbs)
    return text + ".SH EXIT STATUS\n0: done. 2: wrong usage. 3: wrong input. 1: any other error.\n.SH SEE ALSO\n" + pages + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    version = " ".join(version.split()[:2])
    verbs = command_page.read([program])
    pages = {name_of(verb): verb_page(verb, *entry, version) for verb, entry in verbs.items()}
    pages["multihead"] = main_page(verbs, version)
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        (folder / f"{name}.1.gz").write_bytes(gzip.compress(page.encode(), mtime=0))  # the same bytes at every build


if __name__ == "__main__":
    main()
