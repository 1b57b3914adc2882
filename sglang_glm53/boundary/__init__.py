"""Owns the boundary fusion: a norm quantises its output once, for all that read it in FP8."""
