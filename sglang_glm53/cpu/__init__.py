"""The CPU reference platform's entry point; selected by SGLANG_PLATFORM=glm53_cpu alone.

Nothing here imports SGLang's runtime: SGLang calls activate() while it is still choosing its platform.
"""

from sglang_glm53 import PLATFORM_NAME


def activate() -> str | None:
    """Return the platform class's dotted path, or None unless SGLANG_PLATFORM names this platform.

    Source: SGLang 0.5.23, platforms/__init__.py:_resolve_platform.
    """
    from sglang.srt.environ import envs

    if envs.SGLANG_PLATFORM.get() != PLATFORM_NAME:
        return None
    from sglang_glm53.cpu.compat import stand_in_for_cuda

    stand_in_for_cuda()
    return "sglang_glm53.cpu.platform.Glm53CpuPlatform"
