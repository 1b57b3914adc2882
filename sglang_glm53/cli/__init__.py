"""The glm53 command."""
def main(): pass
