"""GLM-5.3 for SGLang 0.5.23, selected by ``--model-impl glm53``; importing this needs neither torch nor SGLang."""

__version__ = "0.1.0"
