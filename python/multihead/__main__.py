"""python -m multihead: the command line."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "multihead")
    if not os.path.exists(program):
        sys.exit("multihead: this build has no command line (MULTIHEAD_BUILD_CLI=OFF)")
    os.execv(program, ["multihead", *sys.argv[1:]])


if __name__ == "__main__":
    main()
