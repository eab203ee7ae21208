"""`python -m emulator` is the command `feedrate`."""

from emulator.cli.entry import entry

if __name__ == "__main__":
    entry()
