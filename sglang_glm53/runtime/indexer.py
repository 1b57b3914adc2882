"""GLM-5.3's lightning indexer."""

from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer


class Glm53Indexer(Indexer):  # type: ignore[misc]
    """SGLang's indexer under a class of ours, so that a platform or a kernel can serve GLM-5.3's alone."""
