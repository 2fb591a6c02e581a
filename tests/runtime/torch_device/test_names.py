"""Device names, compiler flags and variables: the rules, what they do to numbers, and the torch that it is made for."""

from __future__ import annotations

import re
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neurontools.catalog import names
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.policy import ExecutionFailed, check_load
from neurontools.runtime.launch.device_name import (
    InvalidDeviceName,
    choose_device_name,
    device_name,
    other_name_message,
)
from neurontools.runtime.launch.torch_version import SUPPORTED_TORCH
from neurontools.runtime.programs.compiler import CompilerFlags, InvalidCompilerFlags, parse_compiler_flags
from neurontools.runtime.programs.numerics import (
    NEAREST,
    narrowed_types,
    stochastic_bf16,
    stochastic_rounding,
    to_fp8_e4m3,
    to_tf32,
)
from neurontools.runtime.tensors.device import neuroncore_version
from tests.harness.paths import ROOT

Run = Callable[..., Any]


SCRIPTS = {
    "import torch_xla.core.xla_model as xm": "xla",
    "import torch\nx = torch.ones(2, device='neuron')": "neuron",
    "import torch\nx = torch.ones(2).to('neuron:1')": "neuron",
    "import torch\ntorch.neuron.synchronize()": "neuron",
    "import torch\nprint('neuron is a word here')": "xla",
    "import torch_neuronx\nx = 'neuron'": "neuron",
    "import torch_xla\nx = ('xla:0', 'neuron')": "xla",
    "import torch": "xla",
    "this is not Python": "xla",
}
ARGUMENTS = {
    "--device=neuron": "neuron",
    "--device neuron:1": "neuron",
    "trainer.accelerator='neuron'": "neuron",
    "--lr 1 --device xla": "xla",
    "--project neuron": "xla",
    "neuron": "xla",
    "--device cpu": "xla",
    "--device": "xla",
}
CONFIGURATIONS = [
    ("run.yaml", "model:\n  size: 3\n  device: neuron  # native\n", "neuron"),
    ("run.json", '{"lr": 1,\n "device": "neuron:0"\n}', "neuron"),
    ("run.json", '{"lr": 1, "device": "neuron", "size": 3}', "neuron"),
    ("run.yaml", "# device: neuron", "xla"),
    ("run.toml", 'accelerator = "neuron"', "neuron"),
    ("run.ini", "[run]\ndevice=neuron", "neuron"),
    ("run.yaml", "name: neuron", "xla"),
    ("run.yaml", "device: neuronal", "xla"),
    ("run.txt", "device: neuron", "xla"),
]


def test_the_variable_the_command_line_a_configuration_and_the_script_decide(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    assert device_name({}, path) == device_name({}, None) == "xla", "there is no script"
    for script, expected in SCRIPTS.items():
        path.write_text(script)
        assert device_name({}, path) == expected
        assert device_name({"NEURONTOOLS_DEVICE": "neuron"}, path) == "neuron"
    with pytest.raises(InvalidDeviceName, match="set it to xla or neuron"):
        device_name({"NEURONTOOLS_DEVICE": "cuda"}, path)
    for arguments, expected in ARGUMENTS.items():
        path.write_text("import argparse, torch\nif False:\n    import torch_xla")
        assert device_name({}, path, arguments.split()) == expected
        path.write_text("import torch\nx = 'neuron'")
        assert device_name({}, path, arguments.split()) == ("xla" if "xla" in arguments else "neuron")
    path.write_text("import torch")
    for name, text, expected in CONFIGURATIONS:
        configuration = tmp_path / name
        configuration.write_text(text)
        assert device_name({}, path, ["--config", str(configuration)]) == expected
        assert device_name({}, path, [f"--config={configuration}"]) == expected
        assert device_name({}, path, ["--config", str(tmp_path / f"no-{name}")]) == "xla"


NATIVE = """
import copy, pickle, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).to("neuron")
value = torch.randn(3, 8)
before = torch.neuron.memory_allocated()
loss = model(value.to("neuron")).sum()
loss.backward()
copy.deepcopy(model); pickle.loads(pickle.dumps(model.state_dict()))
fast = torch.compile(model, backend="neuron")(value.to("neuron"))
assert torch.equal(fast.cpu(), model(value.to("neuron")).cpu())
assert torch.accelerator.current_accelerator().type == "neuron", torch.accelerator.current_accelerator()
import torch._dynamo, torch_neuronx
assert "neuron" in torch._dynamo.list_backends()
assert torch_neuronx.max_memory_allocated() == torch.neuron.max_memory_allocated() > before
assert torch.neuron.get_device_capability() is None, "no daemon told the instance type"
torch.neuron.synchronize()
print(loss.device, torch.neuron.device_count(), before, repr(torch.ones(1, device="neuron")))
"""


def test_the_native_device(run_script: Run) -> None:
    run = run_script(NATIVE, NEURONTOOLS_DEVICE="")
    assert run.stdout == "neuron:0 2 184 tensor([1.], device='neuron:0')\n"


def test_a_traceback_begins_with_the_script(run_script: Run) -> None:
    run = run_script("def fail():\n    1 / 0\nfail()", exit_code=1)
    assert run.stderr.count("File ") == 2
    assert re.search(r'Traceback .*:\n  File ".*script.py", line 3, in <module>\n', run.stderr)


ARGUMENT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--device"); parser.add_argument("--where")
given = parser.parse_args()
print(torch.ones(2, device=given.device or given.where).sum().item())
"""


@pytest.mark.parametrize(
    ("launcher", "name"),
    [(True, "xla"), (True, "neuron"), (False, "xla"), pytest.param(False, "neuron", marks=pytest.mark.slow)],
)
def test_a_script_that_gets_the_name_by_its_command_line(
    run_python: Run, tmp_path: Path, launcher: bool, name: str
) -> None:
    (tmp_path / "script.py").write_text(ARGUMENT)
    way = ("-m", "neurontools.runtime") if launcher else ()
    variables = {"NEURONTOOLS_DEVICE": "", "NEURONTOOLS_RUNTIME": "" if launcher else "1"}
    run = run_python(*way, "script.py", "--device", name, is_started=not launcher, **variables)
    assert (run.returncode, run.stdout) == (0, "2.0\n"), run.stderr


def test_accelerates_refusal_under_xla_names_the_other_device_name() -> None:
    refused = NotImplementedError("gather objects in TPU is not supported")
    line = other_name_message(refused, choose_device_name({}, None))
    assert line is not None
    assert "GRPOTrainer" in line
    assert line.endswith("set NEURONTOOLS_DEVICE=neuron")
    assert other_name_message(refused, choose_device_name({"NEURONTOOLS_DEVICE": "neuron"}, None)) is None


def test_the_error_for_the_other_name_says_the_variable_and_the_reason(run_script: Run) -> None:
    for beginning, where, reason in (
        ("import torch_xla, argparse", "neuron", "script.py names no device"),
        ("import argparse", "nothing", None),
    ):
        script = ARGUMENT.replace("import argparse", beginning)
        run = run_script(script, "--where", where, exit_code=1, NEURONTOOLS_DEVICE="")
        assert f"device type at start of device string: {where}" in run.stderr
        if reason is None:
            assert "torch allows one name" not in run.stderr
            continue
        assert run.stderr.splitlines()[-1] == (
            "neurontools: torch allows one name for the device in a process; here it is 'xla', because "
            f"{reason}; set NEURONTOOLS_DEVICE=neuron to use 'neuron'"
        )
    assert choose_device_name({"NEURONTOOLS_DEVICE": "xla"}, None).reason == "NEURONTOOLS_DEVICE=xla"


OF_ANOTHER_VERSION = """
import sys, torch
torch.__version__ = sys.argv[1]
from neurontools.runtime.launch.install import install_runtime
install_runtime(); install_runtime()
print(torch.ones(2, device="xla").sum().item())
"""


@pytest.mark.parametrize("version", [f"{SUPPORTED_TORCH}.7", "2.14.0a0"])
def test_another_torch_is_told_in_a_line_and_tried(run_python: Run, version: str) -> None:
    done = run_python("-c", OF_ANOTHER_VERSION, version)
    said = [line for line in done.stderr.splitlines() if "install torch" in line]
    line = (
        f"neurontools: torch 2.14.0a0 is not the supported version {SUPPORTED_TORCH}; if something fails, "
        f"install torch=={SUPPORTED_TORCH}.*"
    )
    assert (done.returncode, done.stdout, said) == (0, "2.0\n", [line] if version == "2.14.0a0" else []), done.stderr


def test_the_bound_is_the_next_minor_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    major, minor = map(int, SUPPORTED_TORCH.split("."))
    assert f"torch>={SUPPORTED_TORCH},<{major}.{minor + 1}" in project["optional-dependencies"]["runtime"]
    assert f"torch=={SUPPORTED_TORCH}.0" in (ROOT / "constraints.txt").read_text("utf-8").split()


FLOATS = st.floats(width=32, allow_nan=False)


def tf32_of(value: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if bits & 0x7F800000 == 0x7F800000:
        return value
    rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & 0xFFFFE000
    (result,) = struct.unpack("<f", struct.pack("<I", rounded & 0xFFFFFFFF))
    return float(result)


@given(FLOATS)
def test_tf32_keeps_ten_bits_of_mantissa(value: float) -> None:
    assert to_tf32(torch.tensor([value])).item() == tf32_of(value)


@given(st.sampled_from(sorted(NEAREST)), st.lists(FLOATS, min_size=1, max_size=8))
def test_rounding_twice_is_rounding_once(name: str, values: list[float]) -> None:
    once = NEAREST[name](torch.tensor(values))
    assert torch.equal(NEAREST[name](once), once)
    assert once.dtype is torch.float32


def test_fp8_saturates_at_its_largest() -> None:
    assert to_fp8_e4m3(torch.tensor([1e9, -300.0, 0.3])).tolist() == [240.0, -240.0, 0.3125]


def test_stochastic_rounding_is_unbiased_reproducible_and_goes_to_neighbours() -> None:
    value = torch.full((200_000,), 1.0 + 3 / 1024)  # 3/8 of the way from 1.0 to the next bfloat16, 1.0078125
    first = stochastic_bf16(value, torch.Generator().manual_seed(1)).float()
    assert torch.equal(stochastic_bf16(value, torch.Generator().manual_seed(1)).float(), first)
    assert set(first.unique().tolist()) == {1.0, 1.0078125}
    assert abs((first > 1).float().mean().item() - 0.375) < 0.005
    special = torch.tensor([float("inf"), float("-inf"), 0.0, 1.0])
    assert stochastic_bf16(special, torch.Generator()).tolist() == special.tolist()
    assert stochastic_bf16(torch.tensor([float("nan")]), torch.Generator()).isnan().item()


@pytest.mark.parametrize(
    ("environment", "narrowed", "stochastic"),
    [
        ({}, {}, False),
        ({"XLA_USE_BF16": "1"}, {torch.float32: torch.bfloat16, torch.float64: torch.bfloat16}, True),
        ({"XLA_DOWNCAST_BF16": "1"}, {torch.float32: torch.bfloat16, torch.float64: torch.float32}, True),
        ({"XLA_USE_BF16": "1", "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0"}, None, False),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}, {}, True),
    ],
)
def test_variables(environment: dict[str, str], narrowed: object, stochastic: bool) -> None:
    if narrowed is not None:
        assert narrowed_types(environment) == narrowed
    assert stochastic_rounding(environment) is stochastic


@pytest.mark.parametrize(
    ("text", "expected", "passed_on"),
    [
        ("", {}, ""),
        ("--auto-cast=none", {}, "--auto-cast none"),
        ("--auto-cast all --auto-cast-type tf32", {"auto_cast": "all", "auto_cast_type": "tf32"}, None),
        ("-O3 -lnc=1", {"optlevel": 3, "logical_neuroncore_config": 1}, "--optlevel 3 --logical-nc-config 1"),
        ("--model-type unet-inference --target inf2", {"model_type": "unet-inference", "target": "inf2"}, None),
        ("--cache_dir=/x --no_cache", {"cache_dir": "/x", "no_cache": True}, ""),
        ("--optlevel 1 --optlevel 2", {}, None),
    ],
)
def test_compiler_flags(text: str, expected: dict[str, Any], passed_on: str | None) -> None:
    words = text if passed_on is None else passed_on
    assert parse_compiler_flags(text) == CompilerFlags(**expected, passed_on=tuple(words.split()))


REFUSED = {
    "--auto-cast some": "argument --auto-cast: invalid choice: 'some' (choose from none, matmult, all)",
    "--bogus": "unrecognized argument '--bogus'",
    "--target": "argument --target: expected one argument",
    "--target trn9": "invalid choice: 'trn9'",
    "'open": "close the quote",
    "--target trn1 -lnc 2": "trn1 has no logical NeuronCores of 2",
}


def test_flags_that_the_compiler_refuses() -> None:
    for text, error in REFUSED.items():
        with pytest.raises(InvalidCompilerFlags) as refused:
            parse_compiler_flags(text)
        assert error in str(refused.value)


def test_the_hash_of_no_flags_is_the_known_one() -> None:
    assert parse_compiler_flags("").hash_text == "d41d8cd9"
    assert parse_compiler_flags("--cache_dir /x").hash_text == "d41d8cd9"
    assert parse_compiler_flags("--optlevel 1").hash_text != "d41d8cd9"


LEGACY = {"NEURON_RT_ALLOW_LEGACY_NEFF": "1"}


@pytest.mark.parametrize(
    ("flags", "instance_type", "lnc", "environment"),
    [
        ("", "trn1.32xlarge", 1, {}),
        ("--target trn1", "trn1.32xlarge", 1, {}),
        ("--target inf2", "trn1n.32xlarge", 1, {}),
        ("--target trn2", None, None, {}),
        ("--target trn2 -lnc 2", "trn2u.48xlarge", 2, {}),
        ("--target trn1", "trn2.48xlarge", 2, LEGACY),
        ("--target trn1", "a-type-of-tomorrow", 1, {}),
    ],
)
def test_what_loads(flags: str, instance_type: str | None, lnc: int | None, environment: dict[str, str]) -> None:
    check_load(parse_compiler_flags(flags), "MODULE_1", instance_type, lnc, environment)


@pytest.mark.parametrize(
    ("flags", "instance_type", "lnc", "environment", "status", "text"),
    [
        ("--target trn2", "trn1.32xlarge", 1, LEGACY, 10, "compiled with --target trn2, this host is a trn1.32xlarge"),
        ("--target trn1", "trn2.48xlarge", 2, {}, 10, "or set NEURON_RT_ALLOW_LEGACY_NEFF=1"),
        ("-lnc 2", "trn2.48xlarge", 1, {}, 2, "Size of 2. Runtime is currently configured with NEURON_LOGICAL"),
    ],
)
def test_what_does_not_load(
    flags: str, instance_type: str, lnc: int, environment: dict[str, str], status: int, text: str
) -> None:
    with pytest.raises(ExecutionFailed) as refused:
        check_load(parse_compiler_flags(flags), "MODULE_1", instance_type, lnc, environment)
    assert refused.value.status == NrtStatus(status)
    assert text in str(refused.value)


def test_all_types_have_a_version() -> None:
    assert all(neuroncore_version(name) is not None for name in names())


ROUNDED = """
import os, sys, torch, torch_xla, torch_xla.core.xla_model as xm
os.environ.update(dict(item.split("=", 1) for item in sys.argv[1:]))
torch.manual_seed(0)
a, b = torch.randn(64, 64), torch.randn(64, 64)
x, y = a.to(xm.xla_device()), b.to(xm.xla_device())
z = x @ y
w = x * y
xm.mark_step()
torch.save({"a": a, "b": b, "z": z.cpu(), "w": w.cpu(), "bytes": xm.get_memory_info()["bytes_used"]}, "out.pt")
"""


@pytest.fixture
def computed(run_script: Callable[..., Any], tmp_path: Path) -> Callable[..., dict[str, torch.Tensor]]:
    """Runs the script with these settings; what it computed."""

    def run(*settings: str) -> dict[str, torch.Tensor]:
        run_script(ROUNDED, *settings)
        return torch.load(tmp_path / "out.pt")  # type: ignore[no-any-return]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3"])
def test_auto_cast_rounds_the_inputs_of_products(computed: Callable[..., dict[str, torch.Tensor]], name: str) -> None:
    out = computed(f"NEURON_CC_FLAGS=--auto-cast matmult --auto-cast-type {name}")
    rounded = NEAREST[name]
    assert torch.equal(out["z"], rounded(out["a"]) @ rounded(out["b"]))
    assert torch.equal(out["w"], out["a"] * out["b"])


@pytest.mark.slow
def test_use_bf16_halves_the_bytes_and_rounds(computed: Callable[..., dict[str, torch.Tensor]]) -> None:
    out = computed("XLA_USE_BF16=1", "NEURON_RT_STOCHASTIC_ROUNDING_EN=0")
    assert out["z"].dtype is torch.float32
    assert torch.equal(out["z"], (out["a"].bfloat16() @ out["b"].bfloat16()).float())
    full = computed()
    assert torch.equal(full["z"], full["a"] @ full["b"])
    tensors = 4 * 64 * 64
    assert full["bytes"] - out["bytes"] in range(tensors * 2 - 200, tensors * 2 + 200)


@pytest.mark.slow
def test_stochastic_rounding_of_a_run_is_reproducible_and_close(
    computed: Callable[..., dict[str, torch.Tensor]],
) -> None:
    first, again, other = (computed("XLA_USE_BF16=1", f"NEURON_RT_STOCHASTIC_ROUNDING_SEED={n}") for n in (7, 7, 8))
    assert torch.equal(first["z"], again["z"])
    assert not torch.equal(first["z"], other["z"])
    exact = first["a"].bfloat16().float() @ first["b"].bfloat16().float()
    assert ((first["z"] - exact).abs() <= exact.abs() / 128 + 1e-6).all()


DEFAULT_DEVICE = """
import torch, torch_xla
torch.set_default_device("xla")
layer = torch.nn.Linear(4, 4)
layer(torch.ones(2, 4)).sum().backward()
out = torch.mul(layer.weight.grad[::2], 2, out=torch.empty(0))
print(out.device, out.tolist())
"""


@pytest.mark.parametrize(
    "settings", [{}, {"XLA_USE_BF16": "1"}, {"NEURON_CC_FLAGS": "--auto-cast=all --auto-cast-type=tf32"}]
)
def test_a_default_device_is_for_the_scripts_own_calls(
    run_script: Callable[..., Any], settings: dict[str, str]
) -> None:
    expected = "xla:0 [[4.0, 4.0, 4.0, 4.0], [4.0, 4.0, 4.0, 4.0]]\n"
    assert run_script(DEFAULT_DEVICE, **settings).stdout == expected


def test_a_script_sees_the_absolute_path_of_its_file(run_script: Callable[..., Any], tmp_path: Path) -> None:
    text = "import sys\nprint(__file__, sys.argv[0], sys.modules['__main__'].__file__ == __file__)"
    assert run_script(text, NEURONTOOLS_DEVICE="").stdout == f"{tmp_path / 'script.py'} script.py True\n"
