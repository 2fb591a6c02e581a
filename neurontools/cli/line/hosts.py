"""The options by which a command looks at many hosts."""

from neurontools.cli.line.options import FILES, Option

NAMES = ("hosts", "hostfile", "slurm", "file-sd", "prometheus")
"""The options that name hosts; they exclude each other."""

HOSTS = (
    Option(
        "hosts",
        "many hosts by SSH: names, lists as trn[1-4,7], grpcs://host:port, or unix:/path of a socket",
        value="LIST",
        joins=True,
    ),
    Option("hostfile", "many hosts: a file with a host a line, and where it is", value="FILE", completes=FILES),
    Option("slurm", "many hosts by SSH: those of this Slurm job", value="JOBID"),
    Option(
        "file-sd", "many hosts by SSH: those of a JSON file of targets of Prometheus", value="FILE", completes=FILES
    ),
    Option("prometheus", "many hosts as the Prometheus at this address knows them", value="URL"),
    Option(
        "prometheus-config",
        "with --prometheus: a TOML file that names the files with token, password, certificates",
        value="FILE",
        completes=FILES,
    ),
)


TLS = (
    Option("tls-cert", "for grpcs://: the certificate to show, a PEM file", value="FILE", completes=FILES),
    Option("tls-key", "for grpcs://: its key", value="FILE", completes=FILES),
    Option("tls-ca", "for grpcs://: who signs the certificates of daemons", value="FILE", completes=FILES),
)


def names_hosts(given: dict[str, str]) -> bool:
    """Whether many hosts are asked for."""
    return any(name in given for name in NAMES)
