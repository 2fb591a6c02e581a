"""Network interfaces, disks and EFA ports: their table, and the host's traffic in a few words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neurontools.model import Host
from neurontools.util import units
from neurontools.views.drawing.columns import Column, count_column
from neurontools.views.drawing.line import foreign


@dataclass(frozen=True, slots=True)
class Traffic:
    """What goes through one part of the host. None: not known, or there is no such thing."""

    kind: str  # net, disk, EFA
    name: str
    state: str | None
    in_bytes_per_second: float | None  # received, or read
    out_bytes_per_second: float | None
    in_bytes_total: int | None
    out_bytes_total: int | None
    rdma_read_bytes_total: int | None = None
    rdma_write_bytes_total: int | None = None
    dropped_packets_total: int | None = None
    retransmitted_bytes_total: int | None = None
    trouble_total: int | None = None  # time-outs, remotes that don't answer, requests that failed


def traffic_rows(host: Host) -> list[Traffic]:
    """All parts: EFA together where there are several ports, interfaces, disks, ports."""
    ports = [
        Traffic(
            "EFA",
            f"{foreign(port.device, 40)}/{port.port}",
            port.state,
            port.received_bytes_per_second,
            port.sent_bytes_per_second,
            port.received_bytes_total,
            port.sent_bytes_total,
            port.rdma_read_bytes_total,
            port.rdma_write_bytes_total,
            port.dropped_packets_total,
            port.retransmitted_bytes_total,
            _sum((port.retransmit_timeouts_total, port.unresponsive_remotes_total, port.failed_requests_total)),
        )
        for port in host.rdma_ports
    ]
    together = [_together(ports)] if len(ports) > 1 else []
    interfaces = [
        Traffic(
            "net",
            foreign(each.name, 40),
            None,
            each.received_bytes_per_second,
            each.sent_bytes_per_second,
            each.received_bytes_total,
            each.sent_bytes_total,
        )
        for each in host.network_interfaces
    ]
    disks = [
        Traffic(
            "disk",
            foreign(each.name, 40),
            None,
            each.read_bytes_per_second,
            each.written_bytes_per_second,
            each.read_bytes_total,
            each.written_bytes_total,
        )
        for each in host.disks
    ]
    return [*together, *interfaces, *disks, *ports]


def traffic_texts(host: Host) -> tuple[str, ...]:
    """What goes in and out a second, by kind, in words: "net in 1.2 MB/s out 300.0 KB/s"; of what there is."""
    rows = traffic_rows(host)
    texts = []
    for kind, into, out in (("EFA", "in", "out"), ("net", "in", "out"), ("disk", "read", "write")):
        of_kind = [row for row in rows if row.kind == kind and row.name != _ALL]
        if of_kind:
            texts.append(
                f"{kind} {into} {units.byte_rate_text(_sum_rates(row.in_bytes_per_second for row in of_kind))} "
                f"{out} {units.byte_rate_text(_sum_rates(row.out_bytes_per_second for row in of_kind))}"
            )
    return tuple(texts)


_ALL = "all"


def _together(ports: list[Traffic]) -> Traffic:
    down = [port.state for port in ports if port.state not in ("ACTIVE", None)]
    return Traffic(
        "EFA",
        _ALL,
        f"{len(down)} down" if down else "ACTIVE" if any(port.state for port in ports) else None,
        _sum_rates(port.in_bytes_per_second for port in ports),
        _sum_rates(port.out_bytes_per_second for port in ports),
        _sum(port.in_bytes_total for port in ports),
        _sum(port.out_bytes_total for port in ports),
        _sum(port.rdma_read_bytes_total for port in ports),
        _sum(port.rdma_write_bytes_total for port in ports),
        _sum(port.dropped_packets_total for port in ports),
        _sum(port.retransmitted_bytes_total for port in ports),
        _sum(port.trouble_total for port in ports),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_rates(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _state_style(row: Traffic) -> str:
    return "text" if row.state in (None, "ACTIVE") else "bad"


COLUMNS: tuple[Column[Traffic], ...] = (
    Column("", 4, 0, lambda row: row.kind, True, lambda _row: "label"),
    Column("NAME", 14, 0, lambda row: row.name, True),
    Column("STATE", 8, 4, lambda row: foreign(row.state or "-", 20), True, _state_style),
    Column("IN", 11, 0, lambda row: units.byte_rate_text(row.in_bytes_per_second)),
    Column("OUT", 11, 0, lambda row: units.byte_rate_text(row.out_bytes_per_second)),
    Column("IN SO FAR", 10, 1, lambda row: units.bytes_text(row.in_bytes_total)),
    Column("OUT SO FAR", 10, 1, lambda row: units.bytes_text(row.out_bytes_total)),
    Column("RDMA READ", 10, 3, lambda row: units.bytes_text(row.rdma_read_bytes_total)),
    Column("RDMA WRITE", 10, 3, lambda row: units.bytes_text(row.rdma_write_bytes_total)),
    count_column("DROPS", 8, 5, lambda row: row.dropped_packets_total),
    Column("SENT AGAIN", 10, 5, lambda row: units.bytes_text(row.retransmitted_bytes_total)),
    count_column("TROUBLE", 8, 4, lambda row: row.trouble_total, lambda row: "bad" if row.trouble_total else "text"),
)
