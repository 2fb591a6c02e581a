"""Group relative policy optimization of a small random Llama, with a tokenizer and a reward of its own."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(1)
words = [f"w{number}" for number in range(60)]
special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
# TRL pads prompts on the left to 128 tokens on this device, so the positions of the model have to be relative.
sizes = {"vocab_size": 63, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(**sizes, max_position_embeddings=256, bos_token_id=1, eos_token_id=1, pad_token_id=0)
prompts = [" ".join(words[(7 * row + 3 * column**2) % 60] for column in range(4)) for row in range(32)]
arguments = GRPOConfig(
    "checkpoints", max_steps=4, per_device_train_batch_size=4, num_generations=2, max_completion_length=8,
    learning_rate=1e-3, logging_steps=1, save_steps=2, report_to=[], disable_tqdm=True, bf16=False,
    use_cpu=os.environ.get("NEURONTOOLS_RUNTIME") == "0",
)  # fmt: skip


class SameDraws(TrainerCallback):
    """Seeds each step, because the CPU draws the order of the samples from the generator of the completions."""

    def on_step_begin(self, arguments, state, control, **_):
        set_seed(state.global_step)


def reward(prompts, completions, **_):
    return [float(sum(map(ord, text)) % 17) for text in completions]


trainer = GRPOTrainer(
    model=LlamaForCausalLM(config),
    reward_funcs=reward,
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokens, padding_side="left", **special),
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    args=arguments,
    callbacks=[SameDraws()],
)
trainer.train(resume_from_checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)
Path(sys.argv[1], os.environ.get("RANK", "0")).write_text(
    json.dumps(
        {
            "device": str(trainer.args.device),
            "rewards": [row["reward"] for row in trainer.state.log_history if "reward" in row],
            "weights": [float(each.detach().cpu().double().sum()) for each in trainer.model.parameters()],
        }
    )
)
