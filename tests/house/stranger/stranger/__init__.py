"""Plug-ins for feedrate in a package of their own."""
