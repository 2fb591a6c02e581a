"""Who may read over the network, as the settings say."""
