"""The options by which a command looks at many hosts."""

from neurontools.cli.line.options import FILES, Option

HOSTS = (
    Option(
        "hosts",
        "many hosts by SSH: names, lists as trn[1-4,7], or unix:/path of a socket",
        value="LIST",
        joins=True,
    ),
    Option("hostfile", "many hosts: a file with a host a line, and where it is", value="FILE", completes=FILES),
)
