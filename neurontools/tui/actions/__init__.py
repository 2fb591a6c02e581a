"""What the keys do, by what they are about; a dashboard has all of it."""
