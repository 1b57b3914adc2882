"""Owns the measurements: kernels beside their peers on a GPU, decode on the reference platform."""
