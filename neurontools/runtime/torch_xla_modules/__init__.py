"""Packages that scripts import as torch_xla and torch_neuronx; `neurontools.runtime.launch.import_hook` finds them."""
