"""Modules that Python or `import torch` loads in every process, so they must import nothing slow."""
