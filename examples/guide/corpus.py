"""Reads the corpus, and makes of each question the many ways in which people might type it."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Entry:
    """One answer and the questions it answers."""

    id: str
    file: str
    answer: str = ""
    questions: list[str] = field(default_factory=list)
    # Never trained: how well these are answered is how well the model understands words that it has not seen.
    held_out: list[str] = field(default_factory=list)
    # Entries behind one of which these questions make sense; empty for questions that stand alone.
    after: list[str] = field(default_factory=list)


@dataclass
class Corpus:
    entries: list[Entry]
    lists: dict[str, list[str]]
    held_out_lists: dict[str, list[str]]

    def by_id(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.id == name)


def read_corpus(folder: Path) -> Corpus:
    """The format: `## id`, questions one a line (`~ ` is held out), the answer in lines that begin with `= `."""
    entries: list[Entry] = []
    lists: dict[str, list[str]] = {}
    held_out_lists: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*.md")):
        entry = None
        for line in file.read_text().splitlines():
            if line.startswith("list "):
                name, _, words = line[len("list ") :].partition(": ")
                seen, _, unseen = words.partition(" ~ ")
                lists[name] = seen.split(", ")
                held_out_lists[name] = unseen.split(", ")
            elif line.startswith("## "):
                entry = Entry(line[3:], file.name)
                entries.append(entry)
            elif entry is None or line == "" or line.startswith("# "):
                continue
            elif line.startswith("= "):
                entry.answer += ("\n" if entry.answer else "") + line[2:]
            elif line.startswith("after: "):
                entry.after = line[len("after: ") :].split(", ")
            elif line.startswith("~ "):
                entry.held_out.append(line[2:])
            else:
                entry.questions.append(line)
    return Corpus(entries, lists, held_out_lists)


# Openings of questions, and other ways to say the same. {} is the rest.
REWRITES = [
    (r"how do i (.+)", [
        "how can i {}", "how to {}", "how do you {}", "how would i {}", "how could i {}", "how does one {}",
        "can you tell me how to {}", "could you tell me how i can {}", "please tell me how to {}", "i want to {}",
        "i need to {}", "i would like to {}", "i'd like to {}", "explain how to {}", "explain how i {}",
        "show me how to {}", "what must i do to {}", "what do i type to {}", "what do i have to do to {}",
        "is there a way to {}", "what's the way to {}", "what is the command to {}", "which command do i need to {}",
        "how should i {}", "{}", "i am trying to {}", "help me {}", "what is the best way to {}", "how may i {}",
    ]),
    (r"how can i (.+)", ["how do i {}", "how to {}", "i want to {}", "is it possible to {}"]),
    (r"what is (?:an? |the )?(.+)", [
        "what's {}", "whats {}", "explain {}", "can you explain {}", "what is {}", "tell me about {}",
        "what do you mean by {}", "what is meant by {}", "i do not know what {} is", "define {}", "{}",
        "please explain {}", "describe {}", "what exactly is {}", "can you tell me what {} is",
        "could you explain {} to me", "i have a question about {}", "what does {} mean",
    ]),
    (r"what are (?:the )?(.+)", ["explain {}", "what are {}", "tell me about {}", "{}", "please explain {}"]),
    (r"what does (.+) do", [
        "what is {} for", "explain {}", "tell me what {} does", "when do i need {}", "{}", "what happens with {}",
        "purpose of {}", "why is there {}", "what is the use of {}", "can you explain {}", "what can i do with {}",
        "tell me about {}", "how do i use {}", "what's {}",
    ]),
    (r"what does (.+) mean", ["what is {}", "explain {}", "meaning of {}", "{}", "what is the meaning of {}",
                              "what's {}", "i do not understand {}", "it says {}"]),
    (r"what happens (.+)", ["what will happen {}", "what is going to happen {}", "tell me what happens {}"]),
    (r"can i (.+)", ["is it possible to {}", "may i {}", "could i {}", "am i able to {}", "can you {}",
                     "i want to {}", "is there a way to {}", "how can i {}"]),
    (r"can it (.+)", ["can hpcserve {}", "is it able to {}", "is hpcserve able to {}", "does it {}"]),
    (r"does it (.+)", ["does hpcserve {}", "can it {}", "can hpcserve {}", "will it {}", "is it true that it does {}"]),
    (r"does hpcserve (.+)", ["does it {}", "can hpcserve {}", "does this {}", "is hpcserve able to {}"]),
    (r"do i need (.+)", ["is {} needed", "must i have {}", "do you need {}", "is {} necessary", "does one need {}"]),
    (r"which (.+)", ["what {}", "tell me which {}", "do you know which {}", "can you tell me which {}"]),
    (r"where (?:is|are) (.+)", ["where do i find {}", "where can i find {}", "where can i see {}", "where's {}",
                                "i cannot find {}", "how do i find {}"]),
    (r"show (?:me )?(.+)", ["show {}", "list {}", "display {}", "can you show me {}", "print {}", "i want to see {}",
                            "let me see {}"]),
    (r"list (?:the |my )?(.+)", ["show {}", "show me {}", "display {}", "print {}", "give me a list of {}"]),
    (r"tell me about (.+)", ["what do you know about {}", "explain {}", "i want to know about {}", "talk about {}"]),
    (r"is there (.+)", ["do you have {}", "does it have {}", "have you got {}", "is there something like {}"]),
    (r"why (.+)", ["can you tell me why {}", "tell me why {}", "for what reason {}", "how come {}"]),
]
REWRITES = [(re.compile(rf"^{pattern}$"), forms) for pattern, forms in REWRITES]

SYNONYMS = {
    "model": ["llm", "language model"], "models": ["llms", "language models"],
    "see": ["look at", "view", "check", "inspect"], "show": ["display", "print", "give me"],
    "stop": ["end", "terminate", "kill", "shut down"], "start": ["launch", "begin", "bring up"],
    "make": ["create", "generate", "produce"], "create": ["make", "generate"], "delete": ["remove", "erase"],
    "remove": ["delete", "get rid of", "drop"], "set": ["change", "configure", "choose", "specify", "define"],
    "choose": ["select", "pick", "set", "specify"], "gpu": ["graphics card", "accelerator", "card"],
    "gpus": ["graphics cards", "accelerators", "cards"], "cluster": ["supercomputer", "system", "machine"],
    "fast": ["quick", "rapid"], "use": ["take", "work with", "employ"], "mean": ["stand for", "signify"],
    "job": ["slurm job", "batch job"], "jobs": ["slurm jobs", "batch jobs"],
    "deploy": ["run", "serve", "bring up", "host"], "run": ["execute", "start"], "explain": ["describe", "clarify"],
    "file": ["document"], "key": ["api key", "token"], "keys": ["api keys", "tokens"], "url": ["address", "link"],
    "error": ["message", "failure"], "several": ["multiple", "many", "more than one"], "cancel": ["abort", "kill"],
    "submit": ["send", "hand in", "queue"], "command": ["tool", "program"], "option": ["flag", "switch", "parameter"],
    "options": ["flags", "parameters"], "folder": ["directory"],
    "colleague": ["friend", "coworker", "student", "team mate"], "laptop": ["notebook", "own computer"],
    "limit": ["cap", "restrict", "bound"], "big": ["large", "huge"], "need": ["require"], "needs": ["requires"],
    "get": ["obtain", "have", "receive"], "find": ["locate", "see"], "list": ["enumerate", "show"],
    "logs": ["log files", "messages", "output"], "log": ["log file", "output"],
    "nodes": ["machines", "hosts", "servers"], "node": ["machine", "host", "server"], "memory": ["ram"],
    "install": ["set up", "put"], "check": ["verify", "test", "validate"], "change": ["modify", "alter", "update"],
    "wait": ["hang"], "waiting": ["stuck", "still queued"], "fails": ["breaks", "crashes"],
    "failed": ["broke", "crashed"], "dies": ["crashes", "goes down", "is lost"], "lost": ["gone"],
    "slow": ["sluggish", "not fast"], "users": ["people"], "user": ["person"], "answer": ["reply", "response"],
    "answers": ["replies", "responses"], "question": ["prompt", "query"], "request": ["call", "query"],
    "requests": ["calls", "queries"], "supported": ["possible", "available"], "support": ["have", "know", "offer"],
    "works": ["functions"], "work": ["function"], "choice": ["selection"], "page": ["site"], "web": ["browser"],
    "usage": ["consumption"], "script": ["file"], "queue": ["waiting line"], "time": ["duration"],
    "longest": ["maximum"], "longer": ["more"], "reach": ["access", "get to"], "connect": ["attach", "link"],
    "speed": ["performance"], "download": ["fetch", "pull"], "open": ["bring up"],
    "engine": ["inference server", "backend"], "engines": ["inference servers", "backends"],
    "replica": ["copy", "instance"], "replicas": ["copies", "instances"], "devices": ["accelerators"],
    "device": ["accelerator"], "parts": ["pieces"], "kind": ["type", "sort"], "kinds": ["types", "sorts"],
    "write": ["compose"], "read": ["look at"], "enable": ["turn on", "activate"],
    "automatically": ["by itself", "on its own"], "possible": ["feasible"], "documentation": ["docs", "manual"],
    "example": ["sample"], "settings": ["configuration"], "configuration": ["settings", "config"], "secure": ["safe"],
    "own": ["personal"],
}
OPENINGS = [
    "please", "hi,", "hello,", "hey,", "ok,", "so", "and", "quick question:", "sorry,", "um,", "well,", "hi!", "hello!",
    "one question:", "i was wondering,", "now,", "good morning,", "could you help me?", "i have a question.", "thanks!",
    "also,", "another question:", "just curious,",
]
ENDINGS = ["please", "thanks", "exactly", "again", "now", "here", "then", "on this machine", "in short", "actually"]
STOP_WORDS = {"the", "a", "an", "my", "do", "does", "is", "to", "of", "it", "are", "me", "i"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "x", "p", "l")]
SYSTEM_MESSAGES = [
    "You are a helpful assistant.", "You are a helpful assistant. Answer briefly.", "Answer in English.",
    "You answer questions of users of a cluster.", "Be concise.", "You are an assistant.",
    "You are a friendly assistant who helps with hpcserve.", "Keep it short and simple.",
]


def normal_form(question: str) -> str:
    """Two questions with one normal form are the same question."""
    bare = re.sub(r"[?!.,]+$", "", question.strip().lower()).strip()
    return bare or question.strip().lower()


class Phrasing:
    """Makes variants of questions, never one that belongs to another answer or that is held out."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.owner: dict[str, str] = {}
        for entry in corpus.entries:
            if not entry.after:
                self.owner |= {normal_form(question): entry.id for question in entry.questions}
        self.held_out = {normal_form(question) for entry in corpus.entries for question in entry.held_out}

    def fill(self, question: str, random_: random.Random, unseen: bool = False) -> str:
        """Words of lists, numbers and made-up words in the place of {…}."""

        def word(match: re.Match) -> str:
            name = match[1]
            if name == "number":
                return str(random_.randrange(10 ** random_.randint(1, 4)))
            if name == "word":
                return "".join(random_.choice(SYLLABLES) for _ in range(random_.randint(2, 3)))
            words = (self.corpus.held_out_lists if unseen else self.corpus.lists)[name]
            return random_.choice(words)

        return re.sub(r"\{(\w+)\}", word, question)

    def ask(self, entry: Entry, random_: random.Random) -> str:
        """One of the entry's questions as somebody might type it."""
        question = self.fill(random_.choice(entry.questions), random_)
        for _ in range(4):
            varied = self.vary(question, random_)
            form = normal_form(varied)
            if form not in self.held_out and self.owner.get(form, entry.id) == entry.id:
                return self.dress(varied, random_)
        return self.dress(question, random_)

    def vary(self, question: str, random_: random.Random) -> str:
        if random_.random() < 0.3:
            return question
        if random_.random() < 0.5:
            question = self.rewrite(question, random_)
        if random_.random() < 0.35:
            question = self.replace_word(question, random_)
        words = question.split(" ")
        if random_.random() < 0.12 and len(words) > 3:
            dropped = [at for at, word in enumerate(words) if word in STOP_WORDS]
            if dropped:
                del words[random_.choice(dropped)]
        if random_.random() < 0.12:
            at = random_.randrange(len(words))
            words[at] = misspell(words[at], random_)
        if random_.random() < 0.12:
            words.insert(0, random_.choice(OPENINGS))
        if random_.random() < 0.06:
            words.append(random_.choice(ENDINGS))
        return " ".join(words)

    def rewrite(self, question: str, random_: random.Random) -> str:
        for pattern, forms in REWRITES:
            match = pattern.match(question)
            if match:
                return random_.choice(forms).replace("{}", match[1])
        return question

    def replace_word(self, question: str, random_: random.Random) -> str:
        words = question.split(" ")
        known = [at for at, word in enumerate(words) if word in SYNONYMS]
        if known:
            at = random_.choice(known)
            words[at] = random_.choice(SYNONYMS[words[at]])
        return " ".join(words)

    def dress(self, question: str, random_: random.Random) -> str:
        """Upper and lower case, and what stands at the end."""
        if random_.random() < 0.5:
            question = re.sub(r"\bi\b", "I", question)
        case = random_.random()
        if case < 0.5:
            question = question[:1].upper() + question[1:]
        elif case < 0.52:
            question = question.upper()
        if question[-1:].isalnum():
            question += random_.choices(["", "?", ".", "!", "??", " ?"], [45, 45, 4, 2, 2, 2])[0]
        return question


def misspell(word: str, random_: random.Random) -> str:
    if len(word) < 5 or not word.isalpha():
        return word
    at = random_.randrange(1, len(word) - 1)
    kind = random_.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    if kind == 2:
        return word[:at] + word[at] + word[at:]
    return word[:at] + random_.choice(LETTERS) + word[at + 1 :]


# Share of questions about everything else, which have few answers and many questions.
ELSE_SHARE = 0.24


class Conversations:
    """Draws conversations: a list of (question, answer), now and then with a system message before them."""

    def __init__(self, corpus: Corpus):
        self.phrasing = Phrasing(corpus)
        self.alone = [e for e in corpus.entries if not e.after and not is_else(e)]
        self.others = [e for e in corpus.entries if is_else(e)]
        # By the number of questions: nobody asks how to build a bomb as often as where a city is.
        self.other_weights = [len(e.questions) ** 0.5 for e in self.others]
        self.follow_ups: dict[str, list[Entry]] = {}
        for entry in corpus.entries:
            for parent in entry.after:
                self.follow_ups.setdefault(parent, []).append(entry)
        self.parents = [e for e in self.alone if e.id in self.follow_ups]

    def draw(self, random_: random.Random, turns: int) -> tuple[str | None, list[tuple[str, str]]]:
        system = random_.choice(SYSTEM_MESSAGES) if random_.random() < 0.15 else None
        pairs: list[tuple[str, str]] = []
        entry: Entry | None = None
        while len(pairs) < turns:
            following = self.follow_ups.get(entry.id, []) if entry else []
            if following and random_.random() < 0.6:
                entry = random_.choice(following)
            elif turns > 1 and random_.random() < 0.25:
                entry = random_.choice(self.parents)
            elif random_.random() < ELSE_SHARE:
                entry = random_.choices(self.others, self.other_weights)[0]
            else:
                entry = random_.choice(self.alone)
            pairs.append((self.phrasing.ask(entry, random_), entry.answer))
        return system, pairs


def is_else(entry: Entry) -> bool:
    """Whether it is one of the few answers to everything that is no matter of hpcserve or Slurm."""
    return entry.file.startswith("09-")
