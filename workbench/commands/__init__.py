"""Subcommands of `workbench`, one a file; heavy imports stay inside the functions."""
