"""The page of many hosts."""
