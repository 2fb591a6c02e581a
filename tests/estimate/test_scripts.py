"""Scripts with faults, which are found at their lines, and good scripts, of which nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from neurontools.estimate.rules import RULES
from neurontools.profile import read_directory
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.report import build_report
from neurontools.profile.analysis.verdict import find_verdict
from tests.harness.neuron_run import neuron_run, summary_of
from tests.harness.training_scripts import BEGINNING, LOOP, TRAINED

pytest.importorskip("torch")

START = BEGINNING + TRAINED
FAULTS = (
    START
    + """
bias = torch.nn.Parameter(torch.zeros(4))
optimizer.add_param_group({'params': [bias]})
kept = []
for number, (value, target) in enumerate(pl.MpDeviceLoader(DataLoader(data, batch_size=4), device)):
    bias.grad = torch.ones(4)
    loss = step(value.repeat(number + 1, 1) / 0 * 0, target.repeat(number + 1))  # recompile
    print(loss.item())  # host-read
    torch.nonzero(value > 0)  # fallback
    kept.append(value.sum() * torch.ones(1 << 18, device=device))
    optimizer.zero_grad(set_to_none=True)
"""
).replace("    optimizer.zero_grad()\n", "    model.zero_grad()\n")
TOO_MANY_MARKS = """
held = torch.empty(15 << 30, dtype=torch.uint8, device=device)
for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=8), device):
    for _ in range(25): xm.all_reduce(xm.REDUCE_SUM, [value])
    loss = step(value, target)
    xm.mark_step()  # two-executions
    loss = loss * 2
del held
"""
SLOW_HOST = """
import neurontools.runtime.launch.summary, time
neurontools.runtime.launch.summary.started_at_seconds -= 31  # as if it had prepared for half a minute
class SlowRows(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, index):
        time.sleep(0.05)  # far more than a step takes on a busy host
        return data[index]
class SlowState:
    def __reduce__(self):
        clock = time.perf_counter
        time.perf_counter = lambda: clock() + 1.1  # as if it had taken so long
        return (SlowState, ())
for value, target in pl.MpDeviceLoader(DataLoader(SlowRows(), batch_size=4), device):  # loader-wait outside-loop
    loss = step(value, target)
    xm.mark_step()
    print(loss.item())  # host-read
torch.save(SlowState(), 'checkpoint.pt')  # checkpoint-cost
"""


KERNEL_WAITS = """
def kernel_waits_ns():
    import contextlib, pathlib
    found = []
    for task in pathlib.Path('/proc/self/task').glob('*/schedstat'):
        with contextlib.suppress(OSError):  # the thread has ended
            found.append(int(task.read_text().split()[1]))
    return sum(found)
waited_before_ns = kernel_waits_ns()
"""
WRITES_WAITS = """
with open('waits', 'a') as file: print(kernel_waits_ns() - waited_before_ns, file=file)
"""


def check(directory: Path, script: str, rules: set[str], *options: str, **environment: str) -> None:
    """These rules speak of a script, and those named at the end of a line name that line, as its profile does.

    The summary and the profile read the clock one after the other. Their times differ by what the process waited for a
    CPU in between: at most by all that the kernel made it wait.
    """
    script = KERNEL_WAITS + script + WRITES_WAITS
    document = summary_of(directory, script, *options, "--profile", "made", **environment)
    found = {each["rule"]: each for each in document["advice"]}
    for number, line in enumerate(script.splitlines(), 1):
        for rule in set(line.partition("  # ")[2].split()) & set(RULES):
            rules = rules | {rule}
            assert found[rule]["place"].endswith(f"script.py:{number}"), found[rule]
    assert rules <= found.keys(), document
    report = build_report(read_directory(directory / "made"))
    profiled = find_verdict(profile_evidence(report))
    assert profiled is not None
    waited_seconds = sum(map(int, (directory / "waits").read_text().split())) / 1e9
    waited_ratio = waited_seconds / report.split.total_seconds
    assert document["verdict"]["ratio"] == pytest.approx(profiled.ratio, abs=0.1 + waited_ratio)
    large = [cause for cause in profiled.causes if cause.part != "execute" and (cause.next_step or cause.ratio > 0.05)]
    counted = {(cause["text"], cause["line"], cause["next_step"]): cause for cause in document["verdict"]["causes"]}
    for cause in large:
        same = counted[cause.text, str(cause.place) if cause.place else None, cause.next_step or None]
        assert same["ratio"] == pytest.approx(cause.ratio, abs=0.02 + waited_ratio)


def test_faults_of_a_script_are_found_at_their_lines(tmp_path: Path) -> None:
    without_line = {"memory-growth", "nan", "idle-cores", "deprecated-variable", "compile-cache", "optimizer-on-host"}
    variables = {"NEURON_RT_NUM_CORES": "2", "XLA_USE_BF16": "1", "NEURON_CC_FLAGS": "--no_cache"}
    check(tmp_path, FAULTS, without_line, **variables)


@pytest.mark.slow
def test_faults_of_two_workers(tmp_path: Path) -> None:
    check(tmp_path, START + TOO_MANY_MARKS, {"small-collectives", "hbm-headroom"}, "-n", "2")


@pytest.mark.slow
def test_times_of_this_cpu(tmp_path: Path) -> None:
    check(tmp_path, START + SLOW_HOST, set())


MUCH = """
optimizer = torch.optim.Adam(model.parameters())
for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=8), device, batches_per_execution=4):
    optimizer.zero_grad()
    with torch.autocast('xla', torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(value), target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    xm.add_step_closure(print, args=(loss,))
with torch.no_grad():
    for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=4), device):
        print((model(value).argmax(1) == target).sum().item())
xm.save(model.state_dict(), 'model.pt')
"""
SCHEDULED = f"""{LOOP}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
{LOOP}    scheduler.step()
"""
ACCUMULATED = """
model.bfloat16()
for number in range(48):
    value, target = torch.randn(8, 8).to(device), torch.zeros(8).long().to(device)
    loss = torch.nn.functional.cross_entropy(model(value.bfloat16()).float(), target)
    loss.backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    if number % 40 == 39: print(loss.item())
    xm.add_step_closure(lambda value: print(value.item()), args=(loss,))
    xm.mark_step()
"""


@pytest.mark.parametrize(
    "script", [MUCH, *(pytest.param(each, marks=pytest.mark.slow) for each in (SCHEDULED, ACCUMULATED))]
)
def test_a_clean_script_gets_no_advice(script: str, tmp_path: Path) -> None:
    document = summary_of(tmp_path, START + script)
    assert document["steps_total"] >= 10
    # Times of a CPU that others use as well may look like those of a slow loader.
    assert [each for each in document["advice"] if each["truth"] == "script"] == []


@pytest.mark.slow
def test_advice_is_printed_whole_where_it_is_asked_for_and_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        (START + LOOP).replace("    step(value, target)\n", "    step(value, target).item()\n")
    )
    for options, printed in (
        ((), (True, False)),
        (("--advise",), (True, True)),
        (("--no-advice",), (False, False)),
        (("--ignore", "nan,host-read"), (False, False)),
    ):
        said = neuron_run(tmp_path, "--simulate", "trn1.2xlarge", *options, "script.py").stderr
        assert ("host-read at" in said, "source:" in said) == printed


def test_a_rule_that_does_not_exist_is_told_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    ended = neuron_run(tmp_path, "--ignore", "speed", "script.py")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no rule of advice is called 'speed'; there are recompile, " in ended.stderr
