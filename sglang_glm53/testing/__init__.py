"""Owns nothing: the tools that tests and the command line use, one concern in each module."""
