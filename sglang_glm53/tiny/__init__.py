"""Owns the tiny checkpoint: GLM-5.3's real architecture with random weights, small enough for a CPU."""
