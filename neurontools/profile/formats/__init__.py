"""Profiles in the forms of the viewers that people have: functions of a `Profile`, one form a module. No torch."""
