"""The CPU reference platform's entry point; selected by SGLANG_PLATFORM=glm53_cpu alone."""


def activate() -> None:
    return None
