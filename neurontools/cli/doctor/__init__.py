"""`neuron-doctor`: checks the installation, driver, daemons and host environment."""
