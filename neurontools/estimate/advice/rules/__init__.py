"""The rules: each module has one, with its condition, its text and its source."""
