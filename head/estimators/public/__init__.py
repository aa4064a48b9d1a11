"""Modules in this folder can be imported as ``abag.NAME``; see `abag.__path__`."""
