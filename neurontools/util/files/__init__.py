"""Files in directories that others may write to: opened by descriptor, and never where somebody else leads."""
