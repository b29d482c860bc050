"""The ``robustfl`` command, also ``python -m robustfl``: ready for Ctrl-C before it imports."""

import os
import signal


def main() -> None:
    """Run the command line; an interrupt during its imports ends with one line and exit code 130."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from robustfl.cli import main as run

    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _stop(*_: object) -> None:
    os.write(2, b"\nStopped.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
