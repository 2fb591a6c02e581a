"""transformers' generate through a traced Llama with our streamer; what the daemon shows beside this script's clock."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch_neuronx
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from neurontools import client
from neurontools.runtime import InferenceReport

LENGTH, PROMPT, NEW_TOKENS, BATCH, LEAST_SECONDS, LEAST_REQUESTS = 32, 5, 12, 2, 3.0, 12
CONFIG = LlamaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=LENGTH, eos_token_id=None, pad_token_id=0, use_cache=False,
)  # fmt: skip


class TracedLlama(LlamaForCausalLM):
    """Pads the tokens to the traced length. Causal attention makes the padding without effect."""

    def use(self, traced):
        self.traced = traced

    def forward(self, input_ids, **_):
        padded = torch.nn.functional.pad(input_ids, (0, LENGTH - input_ids.shape[1]))
        return CausalLMOutputWithPast(logits=self.traced(padded)[:, : input_ids.shape[1]])


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words):
        return self.model(words).logits


class Timed:
    """Passes everything to the streamer of the report, and notes the time of each step."""

    def __init__(self, streamer):
        self.streamer = streamer
        self.began, self.steps = time.monotonic(), []

    def put(self, value):
        self.streamer.put(value)
        self.steps.append(time.monotonic())

    def end(self):
        self.streamer.end()


def main(told):
    torch.manual_seed(0)
    plain = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.randint(1, 97, (BATCH, PROMPT))
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "use_cache": False}
    expected = plain.generate(prompt, **settings)
    model = TracedLlama(CONFIG).eval()
    model.load_state_dict(plain.state_dict())
    model.use(torch_neuronx.trace(Logits(plain), torch.zeros(BATCH, LENGTH, dtype=torch.long)))
    first, each, rates, equal = [], [], [], []
    with InferenceReport.start() as report:
        began = time.monotonic()
        while len(first) < LEAST_REQUESTS or time.monotonic() < began + LEAST_SECONDS:
            timed = Timed(report.tokens("llama"))
            made = model.generate(prompt, streamer=timed, **settings)
            equal.append(torch.equal(made, expected))
            steps = timed.steps[1:]  # the first is the prompt
            first.append(steps[0] - timed.began)
            each.append((steps[-1] - steps[0]) / (len(steps) - 1))
            rates.append(BATCH * len(steps) / (steps[-1] - timed.began))
        own = {"first": first, "each": each, "rates": rates, "equal": equal, "tokens": BATCH * NEW_TOKENS * len(first)}
        assert report.flush()
        with client.connect() as daemon:
            served = None
            while served is None or served.tokens_total != own["tokens"] or served.rates.tokens_per_second is None:
                process = next(each for each in daemon.snapshot().processes if each.pid == os.getpid())
                served = next((model for model in process.served_models if model.name == "llama"), None)
    shown = dataclasses.asdict(served.rates)
    shown["requests_counted"] = sum(served.first_token_histogram.bucket_counts)
    Path(told, "0").write_text(json.dumps({"own": own, "shown": shown}))


if __name__ == "__main__":
    main(sys.argv[1])
