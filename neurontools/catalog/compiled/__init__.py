"""The data files as Python modules, made by scripts/compile-catalog: parsing TOML is slow for a one-shot command."""
