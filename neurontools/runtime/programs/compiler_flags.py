"""NEURON_CC_FLAGS: what the compiler and its wrapper accept, checked as they check it."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, field

VARIABLE = "NEURON_CC_FLAGS"

_AUTO_CAST = ("none", "matmult", "all")
_AUTO_CAST_TYPE = ("bf16", "fp16", "tf32", "fp8_e4m3")
_CHOICES: dict[str, tuple[str, ...]] = {
    "--auto-cast": _AUTO_CAST,
    "--auto-cast-type": _AUTO_CAST_TYPE,
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--optlevel": ("1", "2", "3"),
    "--target": ("inf2", "trn1", "trn1n", "trn2", "trn3"),
    "--logical-nc-config": ("1", "2"),
    "--distribution-strategy": ("llm-training", "nemo"),
    "--verbose": ("trace", "debug", "info", "warning", "error", "critical", "user", "35"),
}
_WITHOUT_LNC = frozenset({"inf2", "trn1", "trn1n"})
_ALIASES = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "-v": "--verbose", "--lnc": "--logical-nc-config"}
_SWITCHES = frozenset(
    {
        "--enable-saturate-infinity",
        "--enable-mixed-precision-accumulation",
        "--disable-mixed-precision-accumulation",
        "--enable-fast-context-switch",
        "--enable-fast-loading-neuron-binaries",
        "--disable-internal-io-dge",
        "--internal-enable-dge-levels",
    }
)
_WRAPPER_SWITCHES = frozenset({"--no_cache", "--retry_failed_compilation"})
_WRAPPER_VALUES = frozenset(
    {"--cache_dir", "--log_level", "--hbm-scratchpad-page-size", "--dump", "--tensorizer-options"}
)


class InvalidCompilerFlags(ValueError):
    """The compiler would refuse these flags; the text is what it says, and what to write instead."""


@dataclass(frozen=True, slots=True)
class CompilerFlags:
    """Flags as they are in force; where one is given twice, the rightmost wins."""

    auto_cast: str = "none"
    auto_cast_type: str = "bf16"
    model_type: str = "generic"
    optlevel: int = 2
    target: str | None = None
    logical_neuroncore_config: int | None = None
    cache_dir: str | None = None
    no_cache: bool = False
    retry_failed_compilation: bool = False
    passed_on: tuple[str, ...] = field(default=())

    @property
    def hash_text(self) -> str:
        """Eight hex digits for the flags that reach the compiler: `d41d8cd9` for none at all."""
        return hashlib.md5(" ".join(self.passed_on).encode(), usedforsecurity=False).hexdigest()[:8]


def parse(text: str) -> CompilerFlags:
    """Reads the value of NEURON_CC_FLAGS; InvalidCompilerFlags for what the compiler would refuse."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidCompilerFlags(f"{VARIABLE}={text!r}: {error}; close the quote") from None
    values: dict[str, str] = {}
    passed_on: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, value = word.partition("=")
        if name.startswith("-O") and len(name) > 2 and not equals:
            name, value, equals = "-O", name[2:], "="
        name = _ALIASES.get(name, name)
        if name in _WRAPPER_SWITCHES:
            values[name] = "1"
            continue
        if name in _SWITCHES:
            passed_on.append(word)
            continue
        if name not in _CHOICES and name not in _WRAPPER_VALUES:
            raise InvalidCompilerFlags(
                f"{VARIABLE}: unrecognized argument {word!r}; known are {', '.join(sorted(_CHOICES))}"
            )
        if not equals:
            if position == len(words):
                raise InvalidCompilerFlags(f"{VARIABLE}: argument {name}: expected one argument")
            value = words[position]
            position += 1
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise InvalidCompilerFlags(
                    f"{VARIABLE}: argument {name}: invalid choice: {value!r} (choose from {', '.join(_CHOICES[name])})"
                )
            passed_on += [name, value]
        values[name] = value
    if values.get("--logical-nc-config") == "2" and values.get("--target") in _WITHOUT_LNC:
        raise InvalidCompilerFlags(
            f"{VARIABLE}: argument --logical-nc-config: {values['--target']} has no logical NeuronCores of 2; use 1"
        )
    return CompilerFlags(
        auto_cast=values.get("--auto-cast", "none"),
        auto_cast_type=values.get("--auto-cast-type", "bf16"),
        model_type=values.get("--model-type", "generic"),
        optlevel=int(values.get("--optlevel", "2")),
        target=values.get("--target"),
        logical_neuroncore_config=int(values["--logical-nc-config"]) if "--logical-nc-config" in values else None,
        cache_dir=values.get("--cache_dir"),
        no_cache="--no_cache" in values,
        retry_failed_compilation="--retry_failed_compilation" in values,
        passed_on=tuple(passed_on),
    )
