"""Integration of the device with stock torch: device module, serialization, autograd and torch.compile."""
