"""A loader: feedrate's direct one, under a name of its own."""

from emulator.loader.base import LoaderPlugin


def _loader():
    from emulator.loader.direct import DirectLoader  # here: --help imports this module, and reads nothing

    return DirectLoader


PATIENT = LoaderPlugin(get=_loader, summary="the direct loader of a stranger")
