"""The rules of advice. A rule is a function from `RunFacts` to `Advice`, or to None if it does not apply.

Each docstring states when the rule applies. `_RULES` at the end lists all rules; docs/advice.md explains them to users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neurontools.estimate.advice import Advice, EffectBasis, RunFacts, Truth
from neurontools.estimate.calibration import LAUNCH_SECONDS
from neurontools.estimate.inference_rules import INFERENCE_RULES, find_inference_advice
from neurontools.estimate.savings import COLLECTIVE_SECONDS, find_saving
from neurontools.estimate.summary_evidence import summary_verdict
from neurontools.profile.analysis.verdict import LARGER_EXECUTIONS, READS_PER_STEP, Cause
from neurontools.util.units import counted, duration_text, iec_bytes_text, percent_text

LEAST_STEPS = 10
"""A run with fewer steps gets no advice, because it is too short to show a steady state."""


_HALF_OF_STEPS = READS_PER_STEP  # an event in more than this share of the steps belongs to training, not to evaluations
_MOST_EXECUTIONS_PER_BATCH = 1.5
_MOST_BATCHES_PER_EXECUTION = 1.5
_SHORT_EXECUTION_SECONDS = 40e-3  # measured host time to execute one training graph
_HOST_BOUND_RATIO = 0.3
_FALLBACK_PREFIX = "fallback "
_FLOAT32_LEAST_SHARE = 0.5
_FLOAT32_LEAST_COMPUTE_RATIO = 0.3
_MOST_COLLECTIVES_PER_STEP = 20
_SMALL_COLLECTIVE_BYTES = 2**20
_MEMORY_GROWTH_RATIO = 0.05
_MEMORY_GROWTH_LEAST_BYTES = 1 << 20  # smaller HBM growth, such as a few retained scalars, is no leak
_HBM_PEAK_RATIO = 0.9
_CHECKPOINT_RATIO = 0.05
_CHECKPOINT_LEAST_SECONDS = 1.0
_OUTSIDE_LOOP_RATIO = 0.5
_OUTSIDE_LOOP_LEAST_SECONDS = 30.0  # time that imports and loading a model can normally take


def _two_executions(facts: RunFacts) -> Advice | None:
    """Applies to a surplus mark_step: more than 1.5 executions per batch, which reads and fallbacks do not explain.

    If batches were not counted, assumes one mark_step per batch at the line with the most calls. The rule counts
    batches, not steps, because a script may accumulate gradients.
    """
    run = facts.run
    causes = ("read", "library read", "fallback")
    explained = sum(site.count for cause in causes for site in facts.call_sites_of(cause))
    marks = facts.call_sites_of("mark_step")
    in_loop = [site for site in marks if site.steps > _HALF_OF_STEPS * run.steps_total]
    batches = run.batches
    if batches is None:
        batches = max((site.count for site in in_loop), default=0) / run.steps_total
    batches = max(batches, 1.0)
    is_explained = explained > _HALF_OF_STEPS * run.steps_total
    if run.executions <= _MOST_EXECUTIONS_PER_BATCH * batches or is_explained or not marks:
        return None
    # MpDeviceLoader calls mark_step at the line of the loop, so the surplus call is at another line.
    surplus = in_loop[-1] if in_loop else marks[0]
    return Advice(
        rule="two-executions",
        truth=Truth.SCRIPT,
        measured=f"{run.executions / batches:.1f} executions for each batch; one is enough",
        place=surplus.text,
        fix="call mark_step once per batch; MpDeviceLoader and xm.optimizer_step(barrier=True) call it themselves",
        effect="half the launches, and intermediate results need no round trip through HBM",
        effect_is=EffectBasis.DOCUMENTED,
        source="Neuron's guide to training with PyTorch: one execution per iteration",
        lost_ratio=0.5 * facts.host_ratio + 0.005,
    )


def _batches_per_execution(facts: RunFacts) -> Advice | None:
    """Applies to one batch per execution if executions take under 40 ms at the bfloat16 peak, or host time dominates.

    Does not apply to executions shorter than the launch of a small graph, for which no measurement is published.
    """
    run = facts.run
    batches = run.batches_per_execution
    if batches is None or not 0.5 < batches <= _MOST_BATCHES_PER_EXECUTION:
        return None
    peak_seconds = facts.hardware.seconds_at_peak({"bfloat16": run.flops}) / run.executions
    is_short = LAUNCH_SECONDS <= peak_seconds < _SHORT_EXECUTION_SECONDS
    if not is_short and (peak_seconds < LAUNCH_SECONDS or facts.host_ratio < _HOST_BOUND_RATIO):
        return None
    return Advice(
        rule="batches-per-execution",
        truth=Truth.SCRIPT,
        measured=f"one batch per execution, {1e3 * peak_seconds:.1f} ms at the bfloat16 peak of {facts.hardware.name}",
        place=facts.main_call_site("mark_step"),
        fix=f"{LARGER_EXECUTIONS}; watch HBM and the compile time",
        effect="2.6 times the samples/s for a ViT-B/16 on inf2.xlarge",
        effect_is=EffectBasis.PUBLISHED,
        source="the ViT article, step 6; Neuron's guide to training with PyTorch",
        lost_ratio=0.3,
    )


def _fallback(facts: RunFacts) -> Advice | None:
    """Applies if an operator that the device can't run falls back to the host in more than half of the steps."""
    least_steps = _HALF_OF_STEPS * facts.run.steps_total
    sites = [site for site in facts.call_sites_of(_FALLBACK_PREFIX) if site.steps > least_steps]
    if not sites:
        return None
    first = sites[0]
    others = f", and others at {len(sites) - 1} more place(s)" if len(sites) > 1 else ""
    return Advice(
        rule="fallback",
        truth=Truth.SCRIPT,
        measured=f"{first.event.removeprefix(_FALLBACK_PREFIX)} ran on the host {first.count} times in "
        f"{facts.run.steps_total} steps{others}",
        place=first.text,
        fix="use an operator whose shape doesn't depend on values (torch.where, a mask), or move it out of the step",
        effect="the step becomes one graph again, without copies to the host and back",
        effect_is=EffectBasis.COUNTED,
        source="PyTorch/XLA's troubleshooting guide",
        lost_ratio=0.5 * facts.host_ratio + 0.05,
    )


def _float32(facts: RunFacts) -> Advice | None:
    """Applies if more than half of the FLOPs are float32, and compute takes at least 30% of a step."""
    run = facts.run
    float32_share = run.flops_by_dtype.get("float32", 0.0) / run.flops
    if float32_share <= _FLOAT32_LEAST_SHARE or 1 - facts.host_ratio < _FLOAT32_LEAST_COMPUTE_RATIO:
        return None
    return Advice(
        rule="float32",
        truth=Truth.SCRIPT,
        measured=f"{float32_share:.0%} of the FLOPs are float32; --auto-cast is none by default since SDK 2.27",
        place=None,
        fix="model.to(torch.bfloat16), or NEURON_CC_FLAGS=--auto-cast=matmult; "
        "NEURON_RT_STOCHASTIC_ROUNDING_EN=1 keeps small updates",
        effect="1.48 times the samples/s for a ViT-B/16 on inf2.xlarge, 3.9 times with batches_per_execution=10",
        effect_is=EffectBasis.PUBLISHED,
        source="the ViT article, steps 5 and 6; the data sheets of the devices",
        lost_ratio=0.35 * (1 - facts.host_ratio),
    )


def _optimizer_on_host(facts: RunFacts) -> Advice | None:
    """Applies if an optimizer has parameters with gradients on the host."""
    count = facts.counter("host_parameters")
    if not count:
        return None
    return Advice(
        rule="optimizer-on-host",
        truth=Truth.SCRIPT,
        measured=f"an optimizer updates {count:.0f} parameter(s) on the host",
        place=None,
        fix="move the whole model with model.to(device) before creating the optimizer",
        effect="the update becomes part of the step's graph",
        effect_is=EffectBasis.COUNTED,
        source="PyTorch's documentation of torch.optim",
        lost_ratio=0.2,
    )


def _small_collectives(facts: RunFacts) -> Advice | None:
    """Applies to more than 20 collectives per step with a mean size below 1 MiB, because their latency dominates."""
    run = facts.run
    if run.collectives <= _MOST_COLLECTIVES_PER_STEP:
        return None
    mean_bytes = run.collective_bytes / run.collectives
    if mean_bytes >= _SMALL_COLLECTIVE_BYTES:
        return None
    return Advice(
        rule="small-collectives",
        truth=Truth.SCRIPT,
        measured=f"{run.collectives:.0f} collectives a step of {iec_bytes_text(round(mean_bytes))} on average",
        place=None,
        fix="reduce gradients in buckets: xm.optimizer_step does, and so does DistributedDataParallel with a larger "
        "bucket_cap_mb",
        effect=f"{(COLLECTIVE_SECONDS * run.collectives).text(duration_text)} less latency per step",
        effect_is=EffectBasis.COUNTED,
        source="AWS's guide to nccom-test",
        lost_ratio=min(facts.step.collectives.middle / facts.step.total.middle, 1.0),
    )


def _memory_growth(facts: RunFacts) -> Advice | None:
    """Applies if HBM use has a new maximum in more than half of the steps, and finally exceeds the warm-up level by 5%.

    Usual causes are lists of results, or a summed loss that keeps its autograd graph alive.
    """
    first, last = facts.counter("hbm_warm_bytes"), facts.counter("hbm_latest_bytes")
    rises, steps = facts.counter("hbm_rises_total"), facts.run.steps_total
    least_growth = max(_MEMORY_GROWTH_RATIO * first, _MEMORY_GROWTH_LEAST_BYTES)
    if last - first < least_growth or rises <= _HALF_OF_STEPS * steps:
        return None
    return Advice(
        rule="memory-growth",
        truth=Truth.SCRIPT,
        measured=(
            f"HBM grew from {iec_bytes_text(int(first))} to {iec_bytes_text(int(last))}, "
            f"in {rises:.0f} of {steps} steps"
        ),
        place=None,
        fix="keep values without their graphs: total += loss.detach(); drop results that you no longer need",
        effect="the run does not end out of memory",
        effect_is=EffectBasis.COUNTED,
        source="SageMaker's rule GPUMemoryIncrease (5% in 10 steps)",
        lost_ratio=0.2,
    )


def _hbm_headroom(facts: RunFacts) -> Advice | None:
    """Applies if the peak HBM use is above 90% of a core's HBM."""
    limit, peak = facts.counter("hbm_limit_bytes"), facts.run.peak_bytes
    if not limit or peak <= _HBM_PEAK_RATIO * limit:
        return None
    return Advice(
        rule="hbm-headroom",
        truth=Truth.SCRIPT,
        measured=f"{iec_bytes_text(peak)} of {iec_bytes_text(int(limit))} of HBM at the peak",
        place=None,
        fix="a smaller batch, torch_xla.utils.checkpoint, or bfloat16; neuronx-cc may need more memory than this run",
        effect="no failed allocation on hardware",
        effect_is=EffectBasis.GUESS,
        source="torch-tb-profiler's threshold (90%)",
        lost_ratio=0.15,
    )


def _compile_cache(facts: RunFacts) -> Advice | None:
    """Applies if graphs were compiled, but none was stored in the compile cache."""
    graphs = int(facts.counter("graphs_compiled_total"))
    if facts.rank.get("compile_cache_stored_total") != 0 or not graphs:
        return None
    return Advice(
        rule="compile-cache",
        truth=Truth.SCRIPT,
        measured=f"graphs compiled but not cached: {graphs}; the compile cache is off or unusable",
        place=None,
        fix="remove --no_cache from NEURON_CC_FLAGS, and set NEURON_COMPILE_CACHE_URL to a persistent directory",
        effect="minutes for each graph on hardware; 40 to 13 min for BERT's pre-training",
        effect_is=EffectBasis.PUBLISHED,
        source="Neuron's tutorial on BERT's pre-training",
        lost_ratio=0.1,
    )


def _checkpoint_cost(facts: RunFacts) -> Advice | None:
    """Applies if saving checkpoints takes at least 5% of the training time, and at least a second."""
    saving, training = facts.counter("save_seconds"), facts.counter("training_seconds")
    if not training or saving < max(_CHECKPOINT_RATIO * training, _CHECKPOINT_LEAST_SECONDS):
        return None
    return Advice(
        rule="checkpoint-cost",
        truth=Truth.CPU,
        measured=f"torch.save took {duration_text(saving)}, beside {duration_text(training)} of training",
        place=facts.main_call_site("save"),
        fix="save less often, from one rank (xm.save), or in the background (torch.distributed.checkpoint.async_save)",
        effect="at most the time spent",
        effect_is=EffectBasis.GUESS,
        source="Neuron's guide to training with PyTorch",
        lost_ratio=min(saving / training, 1.0) / 2,
    )


def _outside_loop(facts: RunFacts) -> Advice | None:
    """Applies if at least half of the run, and at least 30 s, is before the first training step or after the last.

    Omits the time for which the process waited for a CPU that other processes used.
    """
    training = facts.counter("training_seconds")
    wall = facts.counter("wall_seconds") - facts.counter("start_run_delay_seconds")
    outside = wall - training
    if not training or outside < max(_OUTSIDE_LOOP_RATIO * wall, _OUTSIDE_LOOP_LEAST_SECONDS):
        return None
    return Advice(
        rule="outside-loop",
        truth=Truth.CPU,
        measured=f"{duration_text(outside)} of {duration_text(wall)} were before the first step or after the last",
        place=facts.main_call_site("mark_step"),
        fix="prepare data once and store it (tokenised, resized); evaluate less often; keep the compile cache",
        effect="you pay for the instance while it prepares",
        effect_is=EffectBasis.GUESS,
        source="the article on BERT's fine-tuning, by its own times; SageMaker's rule MaxInitializationTime",
        lost_ratio=outside / wall / 2,
    )


def _nan(facts: RunFacts) -> Advice | None:
    """Applies if any execution had NaN in its results."""
    count = facts.counter("numerical_errors_total")
    if not count:
        return None
    return Advice(
        rule="nan",
        truth=Truth.SCRIPT,
        measured=f"{counted(round(count), 'execution')} had NaN in the results",
        place=None,
        fix="NEURON_FAIL_ON_NAN=1 stops at the first NaN; then try a lower learning rate, gradient clipping, or a "
        "wider data type",
        effect="all training after the first NaN is lost",
        effect_is=EffectBasis.COUNTED,
        source="the Neuron runtime's status EXEC_COMPLETED_WITH_NUM_ERR",
        lost_ratio=2.0,
    )


def _idle_cores(facts: RunFacts) -> Advice | None:
    """Applies if any NeuronCore that the process holds executed nothing."""
    idle = int(facts.counter("cores_without_work"))
    core_count = len(facts.rank.get("cores") or ())
    if not idle or not core_count:
        return None
    return Advice(
        rule="idle-cores",
        truth=Truth.SCRIPT,
        measured=f"{idle} of {core_count} NeuronCores were held and computed nothing",
        place=None,
        fix=f"NEURON_RT_NUM_CORES={core_count - idle}, or one worker per core: neuron-run -n {core_count}",
        effect=f"up to {core_count / (core_count - idle):.1f} times the samples/s, or cores for other jobs",
        effect_is=EffectBasis.COUNTED,
        source="the executions of this run",
        lost_ratio=0.4,
    )


def _deprecated_variable(facts: RunFacts) -> Advice | None:
    """Applies if the environment variable XLA_USE_BF16 or XLA_DOWNCAST_BF16 is set."""
    names = facts.rank.get("deprecated_variables") or []
    if not names:
        return None
    verb = "is" if len(names) == 1 else "are"
    return Advice(
        rule="deprecated-variable",
        truth=Truth.SCRIPT,
        measured=f"{' and '.join(map(str, names))} {verb} set; SDK 2.24 was the last to support it",
        place=None,
        fix="model.to(torch.bfloat16), or torch.autocast",
        effect="about 11% fewer samples/s in AWS's BERT pre-training, but it works with later SDKs",
        effect_is=EffectBasis.PUBLISHED,
        source="Neuron's release notes; pytorch/xla issue 8545",
        lost_ratio=0.02,
    )


@dataclass(frozen=True, slots=True)
class _CauseAdvice:
    """The fields that a rule adds to a cause of the verdict, such as where the fix takes effect.

    The lost share of a step is `lost_ratio`, plus `of_host_ratio` times the share of host code, plus `of_cause_ratio`
    times the share of the cause.
    """

    truth: Truth
    effect: str
    effect_is: EffectBasis
    source: str
    lost_ratio: float = 0.0
    of_host_ratio: float = 0.0
    of_cause_ratio: float = 0.0

    def of(self, facts: RunFacts, cause: Cause) -> Advice:
        return Advice(
            rule=cause.rule,
            truth=self.truth,
            measured=f"{percent_text(cause.ratio, 1)} of a step: {cause.text}",
            place=None if cause.place is None else str(cause.place),
            fix=cause.next_step,
            effect=self.effect,
            effect_is=self.effect_is,
            source=self.source,
            lost_ratio=self.lost_ratio + self.of_host_ratio * facts.host_ratio + self.of_cause_ratio * cause.ratio,
        )


_CAUSE_RULES = {
    "recompile": _CauseAdvice(
        Truth.SCRIPT,
        "each new graph is compiled once per cache, which takes minutes on hardware",
        EffectBasis.DOCUMENTED,
        "Neuron's guide to training with PyTorch; PyTorch/XLA's troubleshooting guide",
        lost_ratio=1.0,
    ),
    "host-read": _CauseAdvice(
        Truth.SCRIPT,
        "the host traces ahead of the device again, and batches_per_execution above 1 becomes possible",
        EffectBasis.DOCUMENTED,
        "PyTorch/XLA's metrics analysis (0.5 a step); Neuron's guide to training with PyTorch",
        lost_ratio=0.01,
        of_host_ratio=0.9,
    ),
    "loader-wait": _CauseAdvice(
        Truth.CPU,
        "at most the time waited; 0.6% with synthetic data",
        EffectBasis.GUESS,
        "xprof's threshold (10% of a step); the ViT article, step 2",
        of_cause_ratio=0.5,
    ),
    "load-imbalance": _CauseAdvice(
        Truth.CPU,
        "at most the time waited",
        EffectBasis.GUESS,
        "SageMaker's rule LoadBalancing (50%)",
        of_cause_ratio=0.5,
    ),
}
"""The rules that are causes of the verdict, which decides whether they apply."""

_RULES: dict[str, Callable[[RunFacts], Advice | None]] = {
    "two-executions": _two_executions,
    "batches-per-execution": _batches_per_execution,
    "fallback": _fallback,
    "float32": _float32,
    "optimizer-on-host": _optimizer_on_host,
    "small-collectives": _small_collectives,
    "memory-growth": _memory_growth,
    "hbm-headroom": _hbm_headroom,
    "compile-cache": _compile_cache,
    "checkpoint-cost": _checkpoint_cost,
    "outside-loop": _outside_loop,
    "nan": _nan,
    "idle-cores": _idle_cores,
    "deprecated-variable": _deprecated_variable,
}
RULES = (*_CAUSE_RULES, *_RULES, *INFERENCE_RULES)
"""The names of all rules of advice."""


def find_advice(
    document: Mapping[str, Any], ignored: Collection[str] = (), *, predicts_savings: bool = True
) -> list[Advice]:
    """Applies the rules to a JSON summary of neuron-run; returns their advice in descending order of `lost_ratio`.

    Skips the rules named in `ignored`. Without `predicts_savings`, reads no prices, and no advice has a saving. Returns
    no advice for a training of fewer than `LEAST_STEPS` steps.
    """
    facts = RunFacts.from_summary(document)
    if facts is None:
        found = [advice for advice in find_inference_advice(document) if advice.rule not in ignored]
    elif facts.run.steps_total < LEAST_STEPS:
        return []
    else:
        rules = [rule for name, rule in _RULES.items() if name not in ignored]
        found = [advice for rule in rules if (advice := rule(facts)) is not None]
        saves = {advice.place for advice in found if advice.rule == "checkpoint-cost"} - {None}
        verdict = summary_verdict(document)
        causes = () if verdict is None else verdict.causes
        found += [_CAUSE_RULES[each.rule].of(facts, each) for each in causes if each.rule and each.rule not in ignored]
        # A save reads the tensors that it writes, so a read at its line is not a second fault.
        found = [each for each in found if each.rule != "host-read" or each.place not in saves]
        if predicts_savings:
            found = [replace(advice, saving=find_saving(advice.rule, facts)) for advice in found]
    return sorted(found, key=lambda advice: -advice.lost_ratio)
