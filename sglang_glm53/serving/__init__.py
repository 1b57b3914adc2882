"""Owns what stands around the model: seams and hooks, refusals, the request check, the status."""
