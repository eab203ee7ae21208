"""`import feedrate`: the functions of `emulator.api` by the name of the distribution."""

import sys

from emulator import api

sys.modules[__name__] = api
