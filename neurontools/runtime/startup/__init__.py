"""What Python and `import torch` load by themselves, in every process. Imports nothing that costs."""
