"""python -m multihead: the command line."""

import signal
import sys

from ._core import run_program


def main() -> None:
    # Python notes Ctrl-C and waits until its own code runs again, which it does not before the program ends.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()
