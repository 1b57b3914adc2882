"""Owns GLM-5.3's model classes: SGLang's DeepSeek classes with every layer of ours in place."""
