"""What hangs around the core: each with its verbs, kinds of result and figures; see emulator/registry.py."""
