"""Owns what is added to SGLang's MTP beside the draft model itself."""
