"""Owns the version and the name. GLM-5.3 for SGLang 0.5.23, by --model-impl glm53; imports nothing."""

__version__ = "0.1.0"
# The value of --model-impl that selects this package.
IMPL = "glm53"
# The value of SGLANG_PLATFORM that selects the reference platform.
PLATFORM_NAME = "glm53_cpu"
# The application that SGLang's tokenizer workers import, which loads this package in them.
HTTP_APP = "sglang_glm53.http_app:app"
