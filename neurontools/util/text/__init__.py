"""Quantities and text from elsewhere, made fit for people and terminals."""
