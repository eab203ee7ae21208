"""`python -m emulator` is the command `feedrate`."""

from emulator.cli.main import entry

if __name__ == "__main__":
    entry()
