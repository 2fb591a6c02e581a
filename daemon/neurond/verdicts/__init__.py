"""The health rules: once per tick, they compare a snapshot with earlier ones and report findings."""
