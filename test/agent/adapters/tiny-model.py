"""Writes a tiny Llama with random weights (seeded) and a byte-level tokenizer as a Hugging Face folder.

argv: the folder, how many positions it has (512), and `plain` for one that says printable ASCII
without spaces and ends only where nothing else is allowed.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]
positions = int(sys.argv[2]) if len(sys.argv) > 2 else 512
plain = sys.argv[3:] == ["plain"]
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {symbol: index for index, symbol in enumerate(["<s>", "</s>", *alphabet])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
fast.save_pretrained(folder)

torch.manual_seed(7)
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    # The least that vLLM's attention on CPUs computes.
    head_dim=32,
    max_position_embeddings=positions,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
model = LlamaForCausalLM(config)
if plain:
    said = [vocabulary[chr(code)] for code in range(0x21, 0x7F)]
    # The same in every token, and larger than all the rest: the head's weights for it are a bias.
    model.model.embed_tokens.weight.data[:, 0] = 1
    head = model.lm_head.weight.data
    head *= 40
    head[:, 0] = -5
    head[said, 0] = 0
model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
model.save_pretrained(folder)
