"""The options by which a command looks at many hosts."""

from neurontools.cli.line.options import FILES, Option
from neurontools.util.errors import EXIT_USAGE, UserError

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


def refuse_without_hosts(given: dict[str, str], *names: str) -> None:
    """UserError where an option was given that only has a meaning with many hosts; `names` are those of the command."""
    if "prometheus-config" in given and "prometheus" not in given:
        raise UserError("--prometheus-config needs --prometheus URL, such as http://prometheus:9090", EXIT_USAGE)
    for name in names:
        if name in given and not names_hosts(given):
            raise UserError(f"--{name} is for many hosts; name them, as with --hosts, or leave it out", EXIT_USAGE)
