"""The optional C module. Everything else is in setup.cfg."""

from setuptools import Extension, setup

source = "emulator/storage/_reads.c"
setup(ext_modules=[Extension("emulator.storage._reads", [source], py_limited_api=True, optional=True)])
