"""Writes a model of the shape of Qwen3-0.6B with random weights (seeded) as a Hugging Face folder: argv[1].

Its tokenizer knows bytes alone, so that a prompt has as many tokens as characters; the rest of the vocabulary is there
for the size of the products.
"""

import itertools
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

folder = sys.argv[1]
vocabulary_size = 151_936
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
symbols = itertools.chain(
    ["<s>", "</s>"], *(map("".join, itertools.product(alphabet, repeat=length)) for length in (1, 2, 3))
)
vocabulary = {symbol: index for index, symbol in enumerate(itertools.islice(symbols, vocabulary_size))}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
fast.save_pretrained(folder)

torch.manual_seed(7)
torch.set_default_dtype(torch.bfloat16)
config = Qwen3Config(
    vocab_size=vocabulary_size,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
model = Qwen3ForCausalLM(config)
model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
model.save_pretrained(folder)
