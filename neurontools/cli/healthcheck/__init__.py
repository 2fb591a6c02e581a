"""`neuron-healthcheck`: prints one verdict on the host, for people, Slurm, Nagios and the node problem detector."""
