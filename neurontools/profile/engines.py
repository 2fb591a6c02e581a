"""Which engine of a NeuronCore an operator would keep busy, inferred from its name.

After the guide to the engines in the Neuron documentation: the tensor engine multiplies matrices, the vector engine
works on elements of two tensors and reduces, the scalar engine computes functions of single elements, and what goes by
indices, draws random numbers or moves elements about is left to GpSimd. The compiler may choose otherwise.
"""

from __future__ import annotations

import re

from neurontools.profile.kinds import Engine

_TENSOR = re.compile(
    r"(^|_)(mm|bmm|matmul|addmm|addmv|addbmm|baddbmm|mv|dot|vdot|addr|linear|convolution|conv\dd|"
    r"scaled_dot_product.*|lstm|gru|rnn|mkldnn_rnn_layer|einsum)(_|$)"
)
_SCALAR = re.compile(
    r"(^|_)(exp|exp2|expm1|log|log2|log10|log1p|sqrt|rsqrt|sigmoid|tanh|gelu|silu|mish|relu6?|elu|selu|celu|softplus|"
    r"erf|erfc|sin|cos|tan|asin|acos|atan|sinh|cosh|softmax|log_softmax|hardtanh|hardswish|hardsigmoid|leaky_relu|"
    r"reciprocal|pow|abs|neg|sign|to_copy|copy)(_|$)"
)
_GPSIMD = re.compile(
    r"(^|_)(index|gather|scatter|embedding|select|take|put|sort|argsort|topk|unique|nonzero|masked|where|arange|range|"
    r"random|rand|randn|randint|randperm|bernoulli|normal|uniform|dropout|multinomial|cat|stack|split|flip|roll|pad|"
    r"tril|triu|repeat|one_hot|bincount|histc|searchsorted|bucketize)(_|$)"
)


def engine_of(name: str) -> Engine:
    """The engine for an operator such as aten::addmm; the vector engine for what nothing else is known of."""
    namespace, _, rest = name.partition("::")
    if namespace == "neuron":
        return Engine.COLLECTIVES
    base = rest.partition(".")[0]
    for pattern, engine in ((_TENSOR, Engine.TENSOR), (_GPSIMD, Engine.GPSIMD), (_SCALAR, Engine.SCALAR)):
        if pattern.search(base):
            return engine
    return Engine.VECTOR
