"""The ``robustfl`` command, also ``python -m robustfl``: ready for Ctrl-C and closed streams before it imports."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; an interrupt during its imports ends with one line and exit code 130."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    _open_closed_streams()
    from robustfl.cli import main as run

    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _stop(*_: object) -> None:
    os.write(2, b"\nStopped.\n")
    os._exit(130)


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed, so that no other file takes their number."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
