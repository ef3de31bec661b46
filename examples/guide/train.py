#!/usr/bin/env python3
"""Trains the guide: a model of 2.9 million parameters that answers questions about hpcserve and Slurm.

    python3 train.py --out ../guide.gguf

Its tokenizer, its weights and its text are made here, from the corpus beside this file; nothing is downloaded. Needed
are Python 3.10 or later and, in the versions that it was run with, torch 2.13.0, tokenizers 0.23.3 and numpy 2.3.5.

What can be had again: the tokenizer and every batch are functions of the corpus and --seed, so the same versions of
the packages on the same kind of CPU with the same --threads give the same file. On other CPUs or versions sums are
added in another order: the weights differ in their last bits at first and in more later, while the answers are as good.
Where --minutes ends the training before --steps do, the file depends on how fast the machine was, and the last line says so.
By default the steps end it.
"""

import argparse
import json
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that wait for one another sleep: where others compute on the cores, spinning is what takes the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from torch.nn import functional as F

from corpus import Conversations, Corpus, is_else, read_corpus
from gguf import F32, Q8_0, dequantize_q8_0, write_gguf
from model import Llama, Shape
from muon import Muon

HERE = Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# How Qwen2 cuts text before merges: `tokenizer.ggml.pre` names it, so that llama.cpp cuts alike.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Tokens of a batch, about.
BATCH_TOKENS = 3_000


@dataclass(frozen=True)
class Phase:
    """What is practised up to a share of the training."""

    until: float
    # Of conversations: how many turns they have, and how often.
    turns: tuple[tuple[int, int], ...]
    # Share of the questions that stand alone whose answers are cut, and to how many tokens.
    cut_share: float
    cut_tokens: tuple[int, int]


TALK = ((1, 68), (2, 18), (3, 7), (5, 4), (9, 3))
# First the answers are learned by heart. Then it is practised which question they belong to: that shows in how they
# begin, so most are cut behind it, and twice as many questions are seen in the same time. At last, whole conversations.
PHASES = (
    Phase(0.25, TALK, 0.6, (8, 24)),
    Phase(0.8, ((1, 93), (2, 5), (5, 2)), 0.85, (3, 12)),
    Phase(1.0, TALK, 0.6, (8, 24)),
)
# Conversations that are drawn at once and sorted by length, so that little of a batch is padding.
POOL = 256


def train_tokenizer(corpus: Corpus, conversations: Conversations, shape: Shape) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    random_ = random.Random("tokenizer")
    texts = []
    for entry in corpus.entries:
        # Answers are written, questions are only read: words of answers are to be few tokens.
        texts += [entry.answer] * 6
        for question in entry.questions:
            texts += [conversations.phrasing.fill(question, random_)] * (1 if is_else(entry) else 2)
            texts.append(conversations.phrasing.ask(entry, random_))
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == shape.vocabulary - len(SPECIAL), "the corpus is too small for the vocabulary"
    return tokenizer


class Encoder:
    """Conversations to tokens, with a mark on those that the model is to write."""

    def __init__(self, tokenizer: Tokenizer, shape: Shape):
        self.tokenizer = tokenizer
        self.context = shape.context
        first = shape.vocabulary - len(SPECIAL)
        self.pad, self.start, self.end = range(first, first + len(SPECIAL))
        self.newline = self.text("\n")

    def text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def message(self, role: str, content: str) -> list[int]:
        return [self.start, *self.text(f"{role}\n{content}"), self.end, *self.newline]

    def conversation(
        self, system: str | None, pairs: list[tuple[str, str]], longest: int | None = None
    ) -> tuple[list[int], list[bool]]:
        """With `longest`, the answers are cut there."""
        tokens = self.message("system", system) if system else []
        written = [False] * len(tokens)
        for question, answer in pairs:
            head = self.message("user", question) + [self.start, *self.text("assistant\n")]
            body = [*self.text(answer), self.end][:longest]
            if len(tokens) + len(head) + len(body) > self.context:
                break
            tokens += head + body + self.newline
            written += [False] * len(head) + [True] * len(body) + [False] * len(self.newline)
        return tokens, written


def to_tensors(rows: list[tuple[list[int], list[bool]]], pad: int):
    """Tokens, where the next one is to be predicted, and which it is."""
    longest = max(len(tokens) for tokens, _ in rows) - 1
    tokens = torch.full((len(rows), longest), pad)
    at = torch.zeros((len(rows), longest), dtype=torch.bool)
    targets = []
    for row, (ids, written) in enumerate(rows):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        at[row, : len(ids) - 1] = torch.tensor(written[1:])
        targets += [token for token, mark in zip(ids[1:], written[1:]) if mark]
    return tokens, at, torch.tensor(targets)


def batches(conversations: Conversations, encoder: Encoder, seed: int, pool: int, progress: float):
    """The batches of one pool; the same for the same seed, number of the pool and phase of the training."""
    phase = next((phase for phase in PHASES if progress < phase.until), PHASES[-1])
    random_ = random.Random(f"{seed}/{pool}")
    rows = []
    for _ in range(POOL):
        turns = random_.choices([n for n, _ in phase.turns], [share for _, share in phase.turns])[0]
        is_cut = turns == 1 and random_.random() < phase.cut_share
        longest = random_.randint(*phase.cut_tokens) if is_cut else None
        rows.append(encoder.conversation(*conversations.draw(random_, turns), longest))
    rows.sort(key=lambda row: len(row[0]))
    cut: list[list] = [[]]
    for row in rows:
        if cut[-1] and len(row[0]) * (len(cut[-1]) + 1) > BATCH_TOKENS:
            cut.append([])
        cut[-1].append(row)
    random_.shuffle(cut)
    return [to_tensors(rows, encoder.pad) for rows in cut]


@torch.no_grad()
def judge(model: Llama, encoder: Encoder, asked: list[tuple[str, str]]) -> tuple[float, float, list[str]]:
    """
    Share of questions whose greedy answer is the one wanted, mean loss of its tokens, and the questions that failed. A
    greedy answer is equal exactly if each of its tokens is the likeliest behind those before it.
    """
    model.eval()
    right, losses, failed = 0, [], []
    for begin in range(0, len(asked), 32):
        part = asked[begin : begin + 32]
        rows = [encoder.conversation(None, [pair]) for pair in part]
        tokens, at, targets = to_tensors(rows, encoder.pad)
        logits = model(tokens, at).float()
        losses.append(F.cross_entropy(logits, targets, reduction="none"))
        hits = (logits.argmax(-1) == targets).split([sum(written) for _, written in rows])
        for (question, _), hit in zip(part, hits):
            if hit.all():
                right += 1
            else:
                failed.append(question)
    model.train()
    return right / len(asked), torch.cat(losses).mean().item(), failed


def examinations(corpus: Corpus, conversations: Conversations) -> dict[str, list[tuple[str, str]]]:
    """What the model is asked at the end, each a first question of a conversation, as it stands in the corpus."""
    random_ = random.Random("examination")
    alone = [entry for entry in corpus.entries if not entry.after]
    known = [entry for entry in alone if not is_else(entry)]
    others = [entry for entry in alone if is_else(entry)]
    fill = conversations.phrasing.fill
    return {
        "trained questions": [(fill(q, random_), e.answer) for e in known for q in e.questions],
        "trained questions, said in other words by the script": [
            (conversations.phrasing.ask(e, random_), e.answer) for e in known for _ in range(3)
        ],
        "held-out questions": [(fill(q, random_, unseen=True), e.answer) for e in known for q in e.held_out],
        "everything else, trained questions": [
            (fill(q, random_), e.answer) for e in others for q in e.questions
        ],
        "everything else, held-out questions about words never seen": [
            (fill(q, random_, unseen=True), e.answer) for e in others for q in e.held_out for _ in range(8)
        ],
    }


def quantized(model: Llama) -> Llama:
    """The model as readers of the file have it."""
    copy = Llama(model.shape)
    state = model.state_dict()
    copy.load_state_dict({
        name: torch.from_numpy(dequantize_q8_0(weight.numpy())) if weight.ndim == 2 else weight
        for name, weight in state.items()
    })
    return copy


def export(path: Path, model: Llama, tokenizer: Tokenizer) -> int:
    shape = model.shape
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    parameters = sum(weight.numel() for weight in model.parameters())
    metadata = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "hpcserve guide",
        "general.description": "A very small example model that answers short questions about hpcserve and Slurm in "
        "English, and nothing else. Trained from nothing by examples/guide/train.py of hpcserve.",
        "general.license": "apache-2.0",
        "general.languages": ["en"],
        "general.size_label": f"{parameters / 1e6:.1f}M",
        "general.file_type": 7,
        "general.quantization_version": 2,
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads_kv,
        "llama.attention.key_length": shape.head_width,
        "llama.attention.value_length": shape.head_width,
        "llama.attention.layer_norm_rms_epsilon": shape.epsilon,
        "llama.rope.freq_base": shape.rope_base,
        "llama.rope.dimension_count": shape.head_width,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary] + SPECIAL,
        "tokenizer.ggml.token_type": [1] * len(vocabulary) + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": shape.vocabulary - 1,
        "tokenizer.ggml.padding_token_id": shape.vocabulary - 3,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    tensors = {
        name: (weight.numpy(), Q8_0 if weight.ndim == 2 else F32) for name, weight in model.state_dict().items()
    }
    return write_gguf(path, metadata, tensors)


def learning_rate(peak: float, progress: float, step: int, warm_up: int = 100) -> float:
    return peak * min(1, (step + 1) / warm_up) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1, progress))))


def train(options: argparse.Namespace, model: Llama, conversations: Conversations, encoder: Encoder) -> bool:
    """Returns whether the time ended it before the steps did."""
    hidden = [w for name, w in model.named_parameters() if w.ndim == 2 and not name.startswith("token_embd")]
    others = [w for name, w in model.named_parameters() if w.ndim < 2 or name.startswith("token_embd")]
    # Muon learns by heart in fewer steps than AdamW.
    optimizers = [
        Muon(hidden, lr=options.rate, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=options.rate, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    ]
    step, pool, before_s = 0, 0, 0.0
    if options.checkpoint and options.checkpoint.exists():
        kept = torch.load(options.checkpoint)
        model.load_state_dict(kept["model"])
        for optimizer, state in zip(optimizers, kept["optimizers"]):
            optimizer.load_state_dict(state)
        step, pool, before_s = kept["step"], kept["pool"], kept["elapsed_s"]
    started = time.monotonic() - before_s
    told = saved = time.monotonic()
    losses, seen = [], 0

    def progress() -> float:
        is_over = options.minutes is not None and time.monotonic() - started >= options.minutes * 60
        return 1 if is_over else step / options.steps

    while progress() < 1:
        for tokens, at, targets in batches(conversations, encoder, options.seed, pool, progress()):
            if progress() >= 1:
                break
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(options.rate, progress(), step)
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                logits = model(tokens, at)
            loss = F.cross_entropy(logits.float(), targets)
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            losses.append(loss.item())
            seen += tokens.numel()
            if time.monotonic() - told > options.tell_s:
                rate, mean = seen / (time.monotonic() - told), sum(losses) / len(losses)
                told = time.monotonic()
                print(f"{(told - started) / 60:5.1f} min  step {step}  loss {mean:.4f}  {rate:,.0f} tokens/s", flush=True)
                losses, seen = [], 0
        pool += 1
        if options.checkpoint and time.monotonic() - saved > 120:
            saved = time.monotonic()
            partial = options.checkpoint.with_suffix(".partial")
            states = [optimizer.state_dict() for optimizer in optimizers]
            torch.save({"model": model.state_dict(), "optimizers": states, "step": step, "pool": pool,
                        "elapsed_s": saved - started}, partial)
            partial.replace(options.checkpoint)
    return step < options.steps


def main() -> None:
    arguments = argparse.ArgumentParser(description="Trains examples/guide.gguf.")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--minutes", type=float, help="ends the training sooner")
    arguments.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--bf16", action=argparse.BooleanOptionalAction,
                           default=torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                           help="products in BF16; by default where the CPU has instructions for them")
    arguments.add_argument("--checkpoint", type=Path, help="kept every two minutes; goes on where it exists")
    arguments.add_argument("--tell-s", type=float, default=20)
    options = arguments.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    shape = Shape()
    corpus = read_corpus(HERE / "corpus")
    conversations = Conversations(corpus)
    tokenizer = train_tokenizer(corpus, conversations, shape)
    encoder = Encoder(tokenizer, shape)
    longest = max(len(encoder.text(entry.answer)) for entry in corpus.entries)
    total = sum(len(encoder.text(entry.answer)) for entry in corpus.entries)
    model = Llama(shape)
    print(f"{len(corpus.entries)} answers of {total} tokens, the longest of {longest}; "
          f"{sum(len(e.questions) for e in corpus.entries)} questions, "
          f"{sum(len(e.held_out) for e in corpus.entries)} held out; "
          f"{sum(w.numel() for w in model.parameters()):,} parameters", flush=True)
    started = time.monotonic()
    cut_off = train(options, model, conversations, encoder)
    model = quantized(model)
    size_bytes = export(options.out, model, tokenizer)
    print(f"{options.out}: {size_bytes:,} bytes after {(time.monotonic() - started) / 60:.1f} minutes, "
          f"{time.process_time() / 60:.1f} minutes of CPU time")
    for name, asked in examinations(corpus, conversations).items():
        share, loss, failed = judge(model, encoder, asked)
        print(f"{name}: {share:.1%} of {len(asked)} answered word for word, loss {loss:.4f}")
        for question in failed[:60]:
            print(f"    not: {question}")
    print("the time ended it, so another run may differ" if cut_off else "all steps were done")


if __name__ == "__main__":
    main()
