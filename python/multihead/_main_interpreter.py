"""Refuses a second interpreter before it loads the extension, whose types are one set for the process.

The extension refuses as well; by then its first interpreter's types are out of order.
"""


def _interpreters():
    """CPython's own module; its name changed in 3.13. None where Python was built without it."""
    try:
        import _interpreters as module
    except ImportError:
        try:
            import _xxsubinterpreters as module
        except ImportError:
            return None
    return module


if (_module := _interpreters()) is not None and _module.get_current() != _module.get_main():
    raise ImportError("multihead cannot be imported into a subinterpreter; use threads or processes")
