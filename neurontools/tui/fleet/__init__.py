"""neuron-top's page of many hosts in a terminal."""
