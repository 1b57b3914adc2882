"""Owns the SGLang-facing model code: the model classes, their weight loading and their status."""
