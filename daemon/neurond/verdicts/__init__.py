"""What is wrong on the host: rules that judge a snapshot by the ones before it, once a tick."""
