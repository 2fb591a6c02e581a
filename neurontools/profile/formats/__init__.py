"""Writers of profiles in the formats of existing viewers, one module per format. They do not import torch."""
