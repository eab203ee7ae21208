"""What was asked for, as frozen dataclasses: the only room that reads TOML."""
