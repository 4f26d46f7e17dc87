#!/usr/bin/env python3
"""Compares the C interface with that of a release, as programs compiled against it see it.

  c_abi.py HEADER BASELINE              new functions are no difference
  c_abi.py HEADER BASELINE --write      makes the baseline: after a field has come at the end of options, which the library
                                        allows for, or when a minor version begins

Needs Debian's abigail-tools; without them the status is 77, which ctest takes for skipped.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main(header, baseline, *options):
    if not shutil.which("abidiff"):
        print("c_abi: abidiff is not installed (Debian: abigail-tools)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The interface alone: each function with a body that nobody runs.
        text = pathlib.Path(header).read_text()
        text, functions = re.subn(r"^((?!typedef)\w[\w *]+\bmh_\w+\([^;{}]*\));", r"\1 { __builtin_trap(); }", text, flags=re.M)
        (folder / "interface.c").write_text(text)
        library, now = folder / "libinterface.so", folder / "now.abi"
        for command in (
            ("cc", "-g", "-fPIC", "-shared", "-o", library, folder / "interface.c"),
            ("abidw", "--no-show-locs", "--no-comp-dir-path", "--no-corpus-path", "--out-file", now, library),
        ):
            status, output = run(*command)
            if status:
                print(output)
                return 1
        if "--write" in options:
            shutil.copy(now, baseline)
            print(f"c_abi: {functions} functions in {baseline}")
            return 0
        status, output = run("abidiff", "--no-added-syms", baseline, now)
    print(output + f"c_abi: {functions} functions, " + ("compatible" if status == 0 else f"not as in {baseline}"))
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
