"""`neuron-mcp`: answers the questions of agents over the Model Context Protocol, read-only."""
