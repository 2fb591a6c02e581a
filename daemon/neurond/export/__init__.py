"""The state of simulated devices, put out in the forms that other software reads."""
