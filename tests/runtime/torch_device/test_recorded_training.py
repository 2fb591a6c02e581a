"""All that is recorded of a training: graphs and their files, operators, origins, allocations, counters and steps."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.profile import Profile, read_profile
from neurontools.profile.definitions import CATEGORIES, WARM_UP_STEPS, SpanKind
from neurontools.profile.writer import ProfileWriter
from neurontools.runtime.counting.metrics import call_sites, metrics
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.execution.graph_description import GraphChanges
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.launch.training_statistics import training_counters
from neurontools.runtime.profiling import recorder as profile_recorder
from neurontools.runtime.profiling.recorder import ProfileRecorder
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.device import worker
from neurontools.runtime.torch_device.profiler import open_window
from tests.harness.pictures import is_as_stored
from tests.harness.profiles import METADATA

GOLDEN = Path(__file__).with_name("golden") / "recorded_training.txt"
FILE = Path(__file__).name


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.drop = nn.Dropout(0.25)

    def forward(self, value: torch.Tensor) -> Any:
        first, second = self.up(self.norm(value)).chunk(2, -1)
        gated = torch.cat([nn.functional.gelu(first, approximate="tanh"), second * 0.5], -1)
        return value + self.down(self.drop(gated))


class Model(nn.Module):
    first: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(5, 6), Block(), nn.Linear(6, 5)
        self.register_buffer("first", torch.tensor([0]))

    def forward(self, words: torch.Tensor, dim: int) -> Any:
        value = self.head(self.block(self.words(words)))
        mask = (words > 1).to(torch.uint8)
        with torch.no_grad():
            rounded = torch.div(value, 0.5, rounding_mode="floor").clamp_(min=-2)
            rounded[:, 1:] += value[:, :-1].permute(0, 2, 1).sum((1,), keepdim=True, dtype=torch.float32).mT
        where = torch.where(mask.bool().unsqueeze(dim), rounded, torch.zeros((), device=value.device))
        return value + where[self.first] * torch.arange(2, 7, device=value.device)


def train(model: Model, optimizer: torch.optim.Optimizer, words: torch.Tensor, factor: float, dim: int = -1) -> Any:
    loss = nn.functional.cross_entropy(model(words, dim).flatten(0, 1), words.flatten()) * factor
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def lines_of(profile: Profile, stack: int | None) -> str:
    """Returns the functions of a call stack that are here, innermost first."""
    lines = () if stack is None or stack < 0 else profile.stack(stack)
    return "<".join(line.function for line in lines if line.file.endswith(FILE))


def described(profile: Profile, earlier: int, first_step: int, directory: Path) -> Iterator[str]:
    """Describes a profile without its times. It also has the `earlier` graphs, of other profiles of this process."""
    for number, graph in enumerate(profile.graphs[earlier:]):
        first_operator = graph.first_operator - profile.graphs[earlier].first_operator
        yield (
            f"graph {number} {graph.hash_text}: {graph.reason}; step {graph.step - first_step}, "
            f"{graph.operator_count} operators from {first_operator}, {graph.flops} FLOPs, {graph.moved_bytes} bytes, "
            f"{graph.code_bytes - len(torch.__version__)} of code, {graph.scratchpad_bytes} of scratchpad, "
            f"cached {graph.was_cached}, by {lines_of(profile, graph.stack)}"
        )
        (entry,) = directory.glob(f"*/{graph.module}")
        assert len((entry / "model.neff").read_bytes()) == graph.code_bytes
    for each in profile.operators[profile.graphs[earlier].first_operator :][: profile.graphs[earlier].operator_count]:
        assert each.graph == earlier
        yield (
            f"{each.position} {each.name} {each.engine.name} {each.flops} {each.bytes} {each.result} "
            f"{each.compute_type} {each.scope}{' backward' * each.is_backward} {lines_of(profile, each.stack)}"
        )
    runs = [
        (run.graph - earlier, run.core, run.step - first_step, run.operator_count, profile.names[run.reason])
        for run in profile.executions
    ]
    yield f"executions {runs}"
    rows = [f"{SpanKind(e.kind).name} {profile.names[e.name]} {e.core} {e.bytes} {e.stack >= 0}" for e in profile.spans]
    rows += [
        f"{('allocated', 'freed')[each.action]} {each.bytes} {CATEGORIES[each.category]} on {each.core} "
        f"{lines_of(profile, each.stack)}"
        for each in profile.allocations
    ]
    rows += [
        f"left {block.bytes} {CATEGORIES[block.category]} {lines_of(profile, block.stack)}"
        for block in profile.blocks
        if block.time_ns > 0
    ]
    yield from (f"{count} * {row}" for row, count in sorted(Counter(rows).items()))
    first, *rest = (each for each in profile.memory_levels if each.core == profile.memory_levels[0].core)
    grown = [(each.constants - first.constants, each.tensors - first.tensors) for each in rest]
    yield f"memory {grown}"
    yield f"steps {[(each.step - first_step, each.executions, each.flops) for each in profile.steps]}"
    yield f"executions {[(total.graph - earlier, total.executions, total.failures) for total in profile.graph_totals]}"


def unload_programs() -> None:
    programs = executor().programs
    for loaded in list(programs.values()):
        executor().unload(loaded)
    programs.clear()


def test_what_is_recorded_of_a_training(xla: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_xla.core.xla_model as xm

    for _ in range(WARM_UP_STEPS + 1):
        other = torch.optim.SGD([torch.ones(1, device="xla", requires_grad=True)])
        other.step()
        xm.mark_step()
    monkeypatch.setenv("NEURON_CC_FLAGS", f"--cache_dir={tmp_path}")
    device = executor()
    unload_programs()
    monkeypatch.setattr(device, "graph_changes", GraphChanges())
    gc.collect()  # before the profile, in which it would free tensors of other tests
    statistics, first_step = xla.cores[0].statistics, steps.steps_total + 1
    counted, busy_seconds, work_before = training_counters(), statistics.busy_seconds, device.work()
    before, operators = Counter(metrics.counters), Counter(metrics.operator_counters())
    monkeypatch.setattr(call_sites, "counts", Counter())
    earlier, began_ns = len(ring.graphs), time.perf_counter_ns()
    writer = ProfileWriter(tmp_path / "training", METADATA)
    recorder = ProfileRecorder(ring, writer, worker.live_blocks, worker.peaks)
    window = open_window()
    recorder.start()
    model = Model().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    words = torch.arange(6).reshape(2, 3).remainder(5)
    train(model, optimizer, words.to("xla"), 2.0).item()
    for step in range(9):
        loss = train(model, optimizer, words.to("xla"), 2.0 + step // 8)
        xm.mark_step()
        loss.item()
    train(model, optimizer, words[:, :2].to("xla"), 2.0)
    xm.mark_step()
    train(model, optimizer, words.t().contiguous().t().to("xla"), 2.0)
    xm.mark_step()
    train(model, optimizer, words.to("xla"), 2.0, dim=2)
    xm.mark_step()
    unload_programs()
    train(model, optimizer, words.to("xla"), 2.0)
    xm.mark_step()
    kept = [torch.ones(3, device="xla").nonzero(), torch.ones(2, device="xla:1") + 1]
    xm.mark_step()
    recorder.finish()
    writer.close()
    profile = window.stop()
    elapsed_ns = time.perf_counter_ns() - began_ns
    shown = [*described(profile, earlier, first_step, tmp_path)]
    now = training_counters()
    totals = ("steps_total", "compilations_total", "to_device_bytes_total", "from_device_bytes_total")
    shown += [f"{name} {getattr(now, name) - getattr(counted, name)}" for name in totals]
    work = device.work()
    shown += [f"tensors {work.tensors_total - work_before.tensors_total}"]
    shown += [f"{work.flops - work_before.flops} FLOPs: {work.flops_by_dtype - work_before.flops_by_dtype}"]
    shown += [f"moved {work.moved_bytes - work_before.moved_bytes} bytes"]
    shown += [f"span totals {[(each.kind, each.spans, each.bytes) for each in profile.span_totals]}"]
    counters = {**(Counter(metrics.counters) - before), **(metrics.operator_counters() - operators)}
    shown += [" ".join(f"{name} {count}" for name, count in sorted(counters.items()))]
    shown += sorted(f"{count} * {cause}" for (cause, _, _), count in call_sites.counts.items())
    assert is_as_stored("\n".join(shown) + "\n", GOLDEN), f"{GOLDEN.name} differs; UPDATE_GOLDEN=1 writes it anew"
    assert kept[1].tolist() == [2.0, 2.0]
    assert 0 < (statistics.busy_seconds - busy_seconds) * 1e9 < elapsed_ns
    stored = read_profile(tmp_path / "training")
    assert stored.state.has_ended
    assert stored.metadata == METADATA
    assert replace(stored, metadata=profile.metadata, state=profile.state) == profile
    busy_ns = sum(each.end_ns - each.start_ns for each in profile.executions)
    assert sum(profile.operator_ns) == busy_ns == sum(total.total_ns for total in profile.graph_totals)
    assert 0 < busy_ns < elapsed_ns
    for kind in (SpanKind.TO_DEVICE, SpanKind.COMPILE):
        assert 0 < sum(span.end_ns - span.start_ns for span in profile.spans if span.kind == kind) < elapsed_ns


def test_a_profile_in_memory_drops_the_oldest_events(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_xla.core.xla_model as xm

    monkeypatch.setattr(profile_recorder, "MOST_OPERATORS", 5)
    value = torch.ones(4, device="xla")
    window = open_window()
    for _ in range(4):
        value = value * 2 + 1
        xm.mark_step()
        profile = window.read_profile()
    assert [len(profile.executions), len(profile.operator_ns)] == [2, 4]
    assert (profile.state.recorded["executions"], profile.state.dropped["executions"]) == (4, 2)
    assert sum(total.executions for total in profile.graph_totals) == 4
    window.restart()
    value = value + 1
    xm.mark_step()
    profile = window.stop()
    assert [len(profile.executions), profile.state.dropped] == [1, {}]
    assert sum(total.executions for total in profile.graph_totals) == 1
