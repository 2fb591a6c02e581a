"""A script for each rule, with the fault that the rule is for: it is found, and at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.examples import some
from tests.harness.neuron_run_script import summary_of
from tests.harness.training_scripts import BEGINNING, LOOP, PLAIN, TRAINED

pytest.importorskip("torch")

FAULTS = {
    "recompile": (
        BEGINNING + TRAINED + "for size in range(3, 27):\n"
        "    value, target = torch.randn(size, 8).to(device), torch.zeros(size, dtype=torch.long).to(device)\n"
        "    step(value, target)\n    xm.mark_step()  # HERE\n"
    ),
    "host-read": BEGINNING + TRAINED + PLAIN + "    print(step(value, target).item())  # HERE\n",
    "two-executions": (
        BEGINNING
        + TRAINED
        + PLAIN
        + "    loss = step(value, target)\n    xm.mark_step()  # HERE\n    loss = loss * 2\n"
    ),
    "two-executions without a loader": (
        BEGINNING + TRAINED + "for _ in range(12):\n"
        "    value, target = torch.randn(8, 8).to(device), torch.zeros(8).long().to(device)\n"
        "    loss = step(value, target)\n    xm.mark_step()\n"
        "    loss = loss * 2\n    xm.mark_step()  # HERE\n"
    ),
    "fallback": (
        BEGINNING + TRAINED + PLAIN + "    step(value, target)\n    found = torch.nonzero(value > 0)  # HERE\n"
    ),
    "optimizer-on-host": (
        BEGINNING + TRAINED + "bias = torch.nn.Parameter(torch.zeros(4))\n"
        "optimizer.add_param_group({'params': [bias]})\n"
        + PLAIN
        + "    bias.grad = torch.ones(4)\n    step(value, target)\n"
        "    optimizer.zero_grad(set_to_none=True)\n"
    ).replace("    optimizer.zero_grad()\n", "    model.zero_grad()\n"),
    "loader-wait": (
        BEGINNING + TRAINED + "import time\nclass Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 48\n    def __getitem__(self, index):\n"
        "        time.sleep(0.01)\n        return data[index]\n"
        "loader = DataLoader(Slow(), batch_size=4)\n"
        "for value, target in pl.MpDeviceLoader(loader, device, batches_per_execution=4):  # HERE\n"
        "    step(value, target)\n"
    ),
    "nan": BEGINNING + TRAINED + PLAIN + "    step(value / 0 * 0, target)\n",
    "idle-cores": BEGINNING + TRAINED + LOOP,
    "deprecated-variable": BEGINNING + TRAINED + LOOP,
    "hbm-headroom": (
        BEGINNING + TRAINED + "held = torch.empty(15 << 30, dtype=torch.uint8, device=device)\n" + LOOP + "del held\n"
    ),
    "memory-growth": (
        BEGINNING + TRAINED + "kept = []\n"
        "for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=4), device):  # HERE\n"
        "    step(value, target)\n    kept.append(value.sum() * torch.ones(1 << 18, device=device))\n"
    ),
    "checkpoint-cost": (
        BEGINNING + TRAINED + "import time\nclass Slow:\n"
        "    def __reduce__(self):\n        time.sleep(0.6)\n        return (Slow, ())\n"
        + PLAIN
        + "    step(value, target)\n    torch.save(Slow(), 'checkpoint.pt')  # HERE\n"
    ),
    "outside-loop": (BEGINNING + TRAINED + "import time\ntime.sleep(31)\n" + LOOP),
    "compile-cache": BEGINNING + TRAINED + LOOP,
    "small-collectives": (
        BEGINNING + TRAINED + PLAIN + "    for _ in range(25):\n        xm.all_reduce(xm.REDUCE_SUM, [value])\n"
        "    step(value, target)\n"
    ),
    "float32": (
        BEGINNING.replace("Linear(8, 16)", "Linear(8, 1024)").replace("Linear(16, 4)", "Linear(1024, 1024)")
        + TRAINED.replace("(96, 8)", "(61440, 8)").replace("(96,)", "(61440,)")
        + LOOP.replace("batch_size=8", "batch_size=5120").replace("batches_per_execution=4", "batches_per_execution=6")
    ),
    "batches-per-execution": (
        BEGINNING.replace("Linear(8, 16)", "Linear(8, 1024)").replace("Linear(16, 4)", "Linear(1024, 1024)")
        + TRAINED.replace("(96, 8)", "(61440, 8)").replace("(96,)", "(61440,)")
        + PLAIN.replace("batch_size=8", "batch_size=5120").replace("\n", "  # HERE\n")
        + "    step(value, target)\n"
    ),
}
ENVIRONMENTS = {
    "idle-cores": {"NEURON_RT_NUM_CORES": "2"},
    "deprecated-variable": {"XLA_USE_BF16": "1"},
    "compile-cache": {"NEURON_CC_FLAGS": "--no_cache"},
}
OPTIONS = {"small-collectives": ("-n", "2")}


LONG = ("outside-loop",)


def marked(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long) if name in LONG else name


@pytest.mark.parametrize("name", [marked(name) for name in some(list(FAULTS), 1)])
def test_a_planted_fault_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    script, rule = FAULTS[name], name.partition(" ")[0]
    document = summary_of(tmp_path, script, *OPTIONS.get(name, ()), **ENVIRONMENTS.get(name, {}))
    found = {each["rule"]: each for each in document["advice"]}
    assert rule in found, document
    lines = [number for number, line in enumerate(script.splitlines(), 1) if line.endswith("# HERE")]
    if lines:
        assert found[rule]["place"].endswith(f"script.py:{lines[0]}")
