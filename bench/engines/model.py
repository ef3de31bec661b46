"""Writes a model of the true shape of a published one with random weights (seeded) as a Hugging Face folder.

argv[1] is the folder, argv[2] the name of the shape. Its tokenizer knows bytes alone, so that a prompt has as many tokens
as characters; the rest of the vocabulary is there for the size of the products.
"""

import itertools
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
shapes = {
    "qwen3-0.6b": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=151_936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            **special,
        )
    ),
    "llama-3.2-1b": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128_256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=4096,
            rope_theta=500_000.0,
            tie_word_embeddings=True,
            **special,
        )
    ),
}
folder, shape = sys.argv[1:]
torch.manual_seed(7)
torch.set_default_dtype(torch.bfloat16)
model = shapes[shape]()
model.generation_config = GenerationConfig(**special)
model.save_pretrained(folder)

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
symbols = itertools.chain(
    ["<s>", "</s>"], *(map("".join, itertools.product(alphabet, repeat=length)) for length in (1, 2, 3))
)
vocabulary_size = model.config.vocab_size
vocabulary = {symbol: index for index, symbol in enumerate(itertools.islice(symbols, vocabulary_size))}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
fast.save_pretrained(folder)
