"""From flags, files and the environment to checked settings. The serving process never imports it."""
