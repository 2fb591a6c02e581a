"""The page of the host: vCPUs, memory, network, disks, EFA, power, versions, and what the tools themselves cost."""
