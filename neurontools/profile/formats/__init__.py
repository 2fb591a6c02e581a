"""Writers of profiles in the formats of existing viewers, one module per format. No torch."""
