"""Builds one immutable snapshot per tick from device readings and reports, and keeps the recent ones."""
