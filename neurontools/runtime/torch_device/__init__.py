"""What makes the device one of stock torch: its module, serialization, autograd, torch.compile."""
