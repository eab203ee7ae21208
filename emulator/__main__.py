"""The first module of every process of feedrate: `feedrate` and `python -m emulator`."""

import signal


def main() -> None:
    """Run the command. Never returns."""
    # Python's own handler raises KeyboardInterrupt inside of whatever import is under way, which prints a
    # traceback. There is nothing to tidy up yet: the kernel ends the process (supervise.interruptible).
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from emulator.cli.entry import entry  # after the line above: half a second of imports

    entry()


if __name__ == "__main__":
    main()
