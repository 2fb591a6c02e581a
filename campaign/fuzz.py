"""Trials with damaged input: each reader must accept it or refuse it in one line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from campaign.host import host
from campaign.outcome import Outcome
from neurontools.model import health
from neurontools.rpc.call import CallError, call
from neurontools.testing import DriverTree
from neurontools.util.errors import UserError

_METHODS = (
    "neurontools.v1.MonitorService/GetSnapshot",
    "neurontools.v1.MonitorService/ListHistory",
    "neurontools.v1.MonitorService/RenderDeviceList",
    "neurontools.v1.RuntimeService/Attach",
    "neurontools.v1.RuntimeService/Report",
    "grpc.health.v1.Health/Check",
    "neurontools.v1.MonitorService/No",
)
_COMMANDS = ("ls", "top", "monitor", "run")
_LONG_SECONDS = 10.0
_EXIT_CODES = {0, 1, 2, 4, 5, 6, 12, 124, 130}


def mutated(data: bytes, random: Random) -> bytes:
    """Returns the bytes with a few changes: flipped bits, and parts removed, doubled or replaced."""
    wire = bytearray(data)
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(wire) + 1)
        kind = random.randrange(4)
        if kind == 0 and at < len(wire):
            wire[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del wire[at : at + random.randrange(1, 40)]
        elif kind == 2:
            wire[at:at] = wire[at : at + random.randrange(1, 40)]
        else:
            wire[at : at + 4] = random.randbytes(random.randrange(8))
    return bytes(wire)


def wire(seconds: float, random: Random, directory: Path) -> Outcome:
    """Sends damaged messages to every method of the API."""
    outcome = Outcome("fuzz of the API")
    seed = b"\x0a\x04name\x12\x10" + bytes(range(16)) + b"\x18\x05\x21" + b"\0" * 8
    with host(directory) as daemon:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            outcome.rounds += 1
            try:
                call(daemon.socket, f"/{random.choice(_METHODS)}", mutated(seed, random), timeout_seconds=30)
            except CallError:
                continue
            except Exception as error:
                outcome.failures.append(f"the client fails: {error!r}")
        outcome.check(daemon.settles(lambda snapshot: len(snapshot.cores) == 32), "the daemon does not answer any more")
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    outcome.figure = "the daemon answers as before"
    return outcome


def recordings(seconds: float, random: Random, directory: Path) -> Outcome:
    """Reads damaged recordings."""
    from neurontools.client.recording import RecordingReader

    file = directory / "real.rec"
    with host(directory) as daemon:
        command = "from neurontools.cli.top.command import main; main()"
        flags = ["--json-lines", "--count", "20", "--record", str(file), "--socket", daemon.socket, "-i", "0.1"]
        made = subprocess.run([sys.executable, "-c", command, *flags], capture_output=True, check=False)
    outcome = Outcome("fuzz of recordings")
    if made.returncode or not file.exists():
        outcome.failures.append(f"no recording could be made: {made.stderr.decode()[:200]}")
        return outcome
    real, target = file.read_bytes(), directory / "mutant.rec"

    def read() -> None:
        reader = RecordingReader(str(target))
        try:
            for _ in reader.messages():
                pass
        finally:
            reader.close()

    def one() -> None:
        target.write_bytes(mutated(real, random))
        read()

    _many(outcome, one, seconds)
    return outcome


def configurations(seconds: float, random: Random, directory: Path) -> Outcome:
    """Reads damaged configurations of neuron-monitor, and damaged records in its exporter."""
    from neurontools.exporters.monitor.configuration import InvalidConfiguration, parse_configuration
    from neurontools.exporters.record_metrics import RecordMetrics

    outcome = Outcome("fuzz of configurations and records")
    whole = {
        "period": "1s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "execution_stats", "period": "2s"}]}],
        "system_metrics": [{"type": "vcpu_usage"}, {"type": "neuron_hw_counters"}],
        "k8s_info": {"period": "15s"},
    }
    record = {
        "neuron_runtime_data": [{"pid": 7, "neuron_runtime_tag": "7", "error": "", "report": {}}],
        "system_data": {"memory_info": {"period": 1.0, "memory_total_bytes": 1, "error": ""}},
        "instance_info": {"instance_type": "x", "error": ""},
        "neuron_hardware_info": {"neuron_device_count": 1, "error": ""},
    }
    metrics = RecordMetrics()

    def one() -> None:
        document = _odd(random.choice((whole, record)), random)
        try:
            parse_configuration(document)
        except InvalidConfiguration as refused:
            if "\n" in str(refused):
                raise ValueError("a refusal of several lines") from refused
        if isinstance(document, dict):
            with contextlib.suppress(ValueError):  # not a record: the exporter reports it
                metrics.add_record(document)
            list(metrics.families())

    _many(outcome, one, seconds)
    return outcome


def flags(seconds: float, random: Random, directory: Path) -> Outcome:
    """Starts every command with misspelt and doubled flags, and with missing and absurd values."""
    from neurontools.cli.ls import options as ls
    from neurontools.cli.monitor import command as monitor
    from neurontools.cli.run import command as run
    from neurontools.cli.top import options as top

    pages = dict(zip(_COMMANDS, (ls, top, monitor, run), strict=True))
    values = ["", "0", "-1", "9" * 400, "1e999", "\x1b[2J", "/", "/dev/null", "é" * 50, "a,b,,", "--", "nan", "1-0"]
    outcome = Outcome("fuzz of flags")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        outcome.rounds += 1
        name = random.choice(_COMMANDS)
        known = [flag for option in pages[name].OPTIONS for flag in option.flags]
        words = []
        for _ in range(random.randrange(4)):
            flag = random.choice(known)
            words.append(mutated(flag.encode(), random).decode(errors="replace") if random.random() < 0.3 else flag)
            if random.random() < 0.6:
                words.append(random.choice(values))
        words = [word.replace("\0", "") for word in words]
        code = f"from neurontools.cli.{name}.command import main; raise SystemExit(main())"
        command = [sys.executable, "-c", code, "--socket", str(directory / "none.sock"), *words]
        exit_code, told = _ended(command)
        outcome.check("Traceback" not in told, f"{name} {words}: {told[-200:]}")
        outcome.check("\x1b[2J" not in told, f"{name} {words}: the terminal is told to clear itself")
        outcome.check(exit_code is None or exit_code in _EXIT_CODES, f"{name} {words}: exit code {exit_code}")
    outcome.figure = "no traceback, no control character, known exit codes"
    return outcome


def _ended(command: list[str]) -> tuple[int | None, str]:
    """Returns the exit code and standard error of a command. The exit code is None if the command had to be killed."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            told = process.communicate(timeout=_LONG_SECONDS)[1]
            exit_code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            exit_code, told = None, process.communicate()[1]
    return exit_code, told.decode(errors="replace")


def _odd(part: object, random: Random) -> object:
    """Returns the document with an odd value in place of a random part."""
    odd: list[object] = [None, "", "x" * 1000, -1, 10**400, 1e308, [], {}, [[[]]], True, "\x1b]0;x\x07", "1" * 20]
    if not isinstance(part, dict | list) or not part or random.random() < 0.15:
        return random.choice(odd)
    if isinstance(part, dict):
        chosen = random.choice(list(part))
        return {key: _odd(value, random) if key == chosen else value for key, value in part.items()}
    chosen_index = random.randrange(len(part))
    return [_odd(value, random) if index == chosen_index else value for index, value in enumerate(part)]


def _many(outcome: Outcome, one: Callable[[], None], seconds: float) -> None:
    """Calls `one` until the time is over. Exceptions except one-line UserErrors are failures; equal ones count once."""
    slowest_seconds = 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        outcome.rounds += 1
        began = time.process_time()
        try:
            one()
        except UserError as refused:
            outcome.check("\n" not in str(refused), f"a refusal of several lines: {str(refused)[:100]!r}")
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {str(error)[:150]}"
            if told not in outcome.failures:
                outcome.failures.append(told)
        slowest_seconds = max(slowest_seconds, time.process_time() - began)
    outcome.figure = f"taken or refused in a line, {1000 * slowest_seconds:.0f} ms of CPU at the most"


_NO_COUNTS = (b"", b"\n", b"-5\n", b"abc\n", b"1e5\n", b"5 6\n", b"\xff\x00\x80", b"9" * 5000, b"%d\n" % (2**64 - 1))
_EXTREME_COUNTS = (b"0\n", b"1\n", b"%d\n" % (2**32), b"%d\n" % (2**53 + 1))


def driver_trees(seconds: float, random: Random, directory: Path) -> Outcome:
    """Writes odd contents into files of the driver while the daemon reads them.

    Each round changes one to six files, and waits for a snapshot that was read after the change. A device whose errors
    can't be read must not be healthy.
    """
    outcome = Outcome("driver trees")
    with DriverTree("trn1.2xlarge") as tree:
        files = sorted(path for path in tree.device_path(0).rglob("*") if path.is_file())
        with host(directory, *tree.flags, "--interval", "0.05") as daemon:
            deadline = time.monotonic() + seconds
            while not outcome.rounds or time.monotonic() < deadline:
                outcome.rounds += 1
                damaged = {path: path.read_bytes() for path in random.sample(files, random.randrange(1, 7))}
                described = [_damage(path, random) for path in damaged]
                must_be_unknown = any(hides for _, hides in described)
                told = ", ".join(text for text, _ in described)
                changed_at_seconds = time.monotonic()
                is_read = daemon.settles(
                    # A reading may have begun before the change; the next but one has not.
                    lambda snapshot, at=changed_at_seconds: snapshot.taken_at_seconds > at + 0.1  # type: ignore[misc]
                )
                outcome.check(is_read, f"no snapshot after {told}")
                if must_be_unknown and is_read:
                    healthy = health.is_healthy(health.verdicts(daemon.snapshot()))
                    outcome.check(healthy is not True, f"healthy with {told}")
                for path, content in damaged.items():
                    path.unlink(missing_ok=True)
                    path.write_bytes(content)
            outcome.check("Traceback" not in daemon.log, f"a traceback: {daemon.log[-300:]}")
    outcome.figure = "no stale snapshot, no false healthy"
    return outcome


def _damage(path: Path, random: Random) -> tuple[str, bool]:
    """Damages a file of a device. Returns a description, and whether errors of the device can't be read then."""
    counts_errors = path.parent.name == "hardware" or (path.parts[-3] == "status" and path.name == "total")
    kind = random.randrange(12)
    path.unlink()
    if kind == 0:
        os.mkfifo(path)
        return f"{path.name} a FIFO", counts_errors
    if kind == 1:
        return f"{path.name} missing", counts_errors
    content = random.choice(_NO_COUNTS if kind < 9 else _EXTREME_COUNTS)
    path.write_bytes(content)
    return f"{path.parent.name}/{path.name} {content[:24]!r}", counts_errors and content in _NO_COUNTS
