"""torch_xla, torch_neuronx and neuronx_distributed; `neurontools.runtime.launch.import_hook` makes them importable."""
