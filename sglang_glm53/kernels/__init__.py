"""Owns the CUDA kernels' Python side: one module for each stem, its card, its torch form."""
