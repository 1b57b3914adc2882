"""Owns the version. GLM-5.3 for SGLang 0.5.23, selected by --model-impl glm53; imports nothing."""

__version__ = "0.1.0"
