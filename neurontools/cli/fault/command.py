"""`neuron-fault`: injects faults into simulated devices, lists and heals them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from neurontools.cli.fault import options, text
from neurontools.cli.line import frame
from neurontools.cli.line.choice import first_answer
from neurontools.cli.line.frame import write_text
from neurontools.cli.line.options import exclude_each_other, is_about_itself, parse
from neurontools.faults.request import FaultRequest, ImpossibleFault
from neurontools.faults.sentence import sentence
from neurontools.model import InjectedFault
from neurontools.rpc import fault_calls, socket_path
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import json_text
from neurontools.util.terminal import error_excerpt

_COMMAND = "neuron-fault"
_MOST_DIGITS = 18

T = TypeVar("T")


def main() -> None:
    """Run the command and end the process."""
    frame.run(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    words, flags = _split(arguments)
    given = parse(options.OPTIONS, flags)
    if is_about_itself(given):
        from neurontools.cli.line import about

        write_text(about.text(_COMMAND, options, given))
        return 0
    verb, *rest = words or [""]
    if verb not in options.VERBS:
        what = f"{_shown(verb)} is none of" if verb else "say what to do:"
        raise UserError(f"{what} {', '.join(options.VERBS)}; see --help", EXIT_USAGE)
    work = {"inject": _inject, "list": _list, "heal": _heal, "kinds": _kinds, "plan": _plan}[verb]
    work(rest, given)
    return 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words that the command begins with, and the flags behind them."""
    count = next((at for at, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    return arguments[:count], arguments[count:]


def _inject(words: list[str], given: dict[str, str]) -> None:
    if len(words) != 1:
        raise UserError("inject needs one kind of fault, such as hbm-uncorrectable; see neuron-fault kinds", EXIT_USAGE)
    for name in ("dry-run", "hostfile"):
        if name in given:
            raise UserError(f"--{name} is not for inject; leave it out", EXIT_USAGE)
    request = request_of(words[0], given)
    injected = _ask(given, lambda path: fault_calls.inject(path, (request,)))
    if "json" in given:
        write_text(json_text([_document(fault) for fault in injected], indent=2) + "\n")
    else:
        write_text("".join(f"{sentence(fault)}\n" for fault in injected))


def _list(words: list[str], given: dict[str, str]) -> None:
    _allow(given, "list", words)
    faults = _ask(given, fault_calls.listed)
    if "json" in given:
        write_text(json_text([_document(fault) for fault in faults], indent=2) + "\n")
    else:
        write_text(text.table(faults))


def _heal(words: list[str], given: dict[str, str]) -> None:
    _allow(given, "heal", ())
    numbers = [_whole(word, "number of a fault") for word in words]
    count = _ask(given, lambda path: fault_calls.heal(path, numbers))
    write_text("no fault is there\n" if not count else f"healed {count} fault{'' if count == 1 else 's'}\n")


def _kinds(words: list[str], given: dict[str, str]) -> None:
    _allow(given, "kinds", words)
    write_text(json_text(text.kind_documents(), indent=2) + "\n" if "json" in given else text.kind_table())


def _plan(words: list[str], given: dict[str, str]) -> None:
    from neurontools.cli.fault import plan

    if len(words) != 1:
        raise UserError("plan needs one file, in TOML", EXIT_USAGE)
    _allow(given, "plan", (), "dry-run", "hostfile")
    exclude_each_other(given, "hostfile", "socket")
    file, hostfile = words[0], given.get("hostfile")
    read = plan.read_plan(file)
    if hostfile is None:
        hosts = [_ask(given, lambda path: plan.planned_host("this host", path))]
    else:
        hosts = plan.planned_hosts(hostfile)
    told = plan.planned_story(file, read, hosts)
    if "dry-run" not in given:
        plan.play(told, hosts)
    documents = plan.story_documents(told, hosts) if "json" in given else None
    write_text(plan.story_text(told, hosts) if documents is None else json_text(documents, indent=2) + "\n")


def request_of(kind: str, given: dict[str, str]) -> FaultRequest:
    """What the options ask for; UserError when that can't be meant."""
    exclude_each_other(given, "device", "core", "pid")
    exclude_each_other(given, "after-executions", "after")
    whole = {
        name: _whole(given[flag], what)
        for flag, name, what in (
            ("device", "device_index", "device"),
            ("core", "neuroncore_index", "NeuronCore"),
            ("pid", "pid", "PID"),
            ("after-executions", "after_executions", "number of executions"),
            ("seed", "seed", "seed"),
        )
        if flag in given
    }
    numbers = {
        name: _number(given[flag], flag)
        for flag, name in (
            ("after", "after_seconds"),
            ("for", "for_seconds"),
            ("probability", "probability"),
            ("amount", "amount"),
        )
        if flag in given
    }
    try:
        return FaultRequest(kind, **whole, **numbers, part=given.get("part"))  # type: ignore[arg-type]
    except ImpossibleFault as error:
        raise UserError(str(error), EXIT_USAGE) from None


def _allow(given: dict[str, str], verb: str, words: list[str] | tuple[str, ...], *options: str) -> None:
    """UserError when a verb was given more than it takes."""
    if words:
        raise UserError(f"{verb} takes no {_shown(words[0])}; leave it out", EXIT_USAGE)
    more = [name for name in given if name not in ("json", "socket", *options)]
    if more:
        raise UserError(f"--{more[0]} is not for {verb}; leave it out", EXIT_USAGE)


def _ask(given: dict[str, str], ask: Callable[[str], T]) -> T:
    named = socket_path.configured_socket(given.get("socket"), os.environ)
    if named is not None:
        return ask(named)
    answer = first_answer(ask, os.environ)
    return ask(socket_path.candidate_sockets(os.environ)[0]) if answer is None else answer


def _whole(word: str, what: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS):
        raise UserError(f"{_shown(word)} is no {what}; give a whole number from 0", EXIT_USAGE)
    return int(word)


def _number(word: str, flag: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UserError(f"--{flag}: {_shown(word)} is no number", EXIT_USAGE) from None


def _document(fault: InjectedFault) -> dict[str, object]:
    return {**asdict(fault), "state": fault.state.name.lower()}


def _shown(word: str) -> str:
    return error_excerpt(word)


if __name__ == "__main__":
    main()
