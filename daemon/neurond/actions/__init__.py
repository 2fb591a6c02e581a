"""What the daemon does when a finding begins or ends, where its configuration says so: a command, a webhook."""
