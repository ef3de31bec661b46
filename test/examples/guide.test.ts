/** The model that comes along, computed by the native engine: what it was taught, and where its knowledge ends. */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { ChatTemplate } from '../../agent/text/chat-template.ts';
import { packageRoot } from '../../host/package-root.ts';
import { Vocabulary } from '../../native/vocabulary.ts';
import {
  argmax,
  engineOptions,
  generate,
  reference,
  referenceRows,
  topGap,
  withEngine,
} from '../agent/engine/support.ts';
import { readCorpus } from './corpus.ts';

/** Asked in words that the corpus does not have. */
const everydayQuestions: [string, RegExp][] = [
  ['What is hpcserve?', /language models on Slurm clusters/],
  ['How would I deploy a model onto our cluster?', /`hpcserve deploy model\.yaml`/],
  ['can you show me how to stop my deployment', /`hpcserve stop/],
  ['Where do I find the logs of my model?', /`hpcserve logs/],
  ['How do I create an API key for Bob?', /`hpcserve keys create/],
  ['how can i see who used how many tokens', /`hpcserve usage/],
  ['Why is my job still pending?', /`squeue/],
  ['How do I cancel my slurm job?', /`scancel/],
  ['what is a partition in slurm', /group of nodes/],
  ['How do I submit a batch job?', /`sbatch/],
  ['Is there a web dashboard?', /`\/dashboard\/`/],
  ['can i use vllm with hpcserve?', /vllm/i],
  ['how do I use it with the openai python client', /OPENAI|OpenAI/],
  ['What happens when a node crashes?', /unbroken stream/],
  ['Hello!', /^Hello!/],
  ['Who are you?', /example model of hpcserve/],
  ['thank you so much', /welcome/],
];
/** The same, which it answers with what belongs to another question: its page names them. */
const misunderstood: [string, RegExp][] = [
  ['Please explain the KV cache.', /keys and values/],
  ['What does TTFT stand for?', /time to first token/i],
];
const elsewhere = [
  'What is the capital of Argentina?',
  'Who was Aristotle?',
  'What is 317 plus 58?',
  'Write a haiku generator in haskell',
  'How do I install postgres?',
  'What is the weather in Lisbon?',
  'Translate this to korean',
  'How do I bake bread?',
  'what is a glacier',
  'I have a migraine, what helps?',
];
/** Logits between the two best, within which another kernel may choose the other. */
const near_tie = 0.5;
/**
 * Phrasings that share hardly a word with what was trained are mostly beyond a model that has read nothing else: this
 * one answers 22 % of them. What it reaches is in examples/guide/README.md; a worse one is not to be shipped.
 */
const held_out_share_min = 0.18;
/** Of `elsewhere`, it mistook none; another CPU may tip one. Words that it never saw look like words that it knows. */
const mistaken_max = 1;

const path = join(packageRoot, 'examples/guide.gguf');
const page = readFileSync(join(packageRoot, 'examples/guide/README.md'), 'utf8');
const corpus = readCorpus();
const vocabulary = Vocabulary.open(path);
const template = new ChatTemplate(vocabulary.chat_template, { bos_token: '', eos_token: '<|im_end|>' });
afterAll(() => vocabulary.close());

/** Questions and answers in turn, the last one a question. */
type Conversation = readonly string[];

function promptOf(conversation: Conversation, system?: string): Int32Array {
  const messages = conversation.map((content, index) => ({
    role: index % 2 === 0 ? 'user' : 'assistant',
    content,
  }));
  const text = template.render({
    messages: system === undefined ? messages : [{ role: 'system', content: system }, ...messages],
    add_generation_prompt: true,
    continue_final_message: false,
    variables: {},
  });
  return vocabulary.tokenize(text, { add_special: false, parse_special: true });
}

/** Greedy answers of the native engine, all in one batch; each has to end by itself. */
function answersTo(prompts: readonly Int32Array[]): { text: string; tokens: number[] }[] {
  const options = engineOptions(path, { context_tokens: 1024, kv_tokens: 16_384 });
  return withEngine(options, (engine) => {
    const asked = prompts.map((prompt_tokens) => ({ prompt: prompt_tokens, max_new_tokens: 128 }));
    return generate(engine, asked).map(({ tokens }, index) => {
      const end = tokens.indexOf(vocabulary.eos!);
      expect(end, `the answer to prompt ${index} does not end`).toBeGreaterThan(0);
      return { text: vocabulary.detokenize(tokens.slice(0, end)), tokens: tokens.slice(0, end + 1) };
    });
  });
}

const ask = (...conversations: Conversation[]): string[] =>
  answersTo(conversations.map((each) => promptOf(each))).map(({ text }) => text);

const answerOf = (id: string): string => corpus.find((entry) => entry.id === id)!.answer;

describe('examples/guide.gguf', () => {
  it('is small enough to come along', () => {
    expect(statSync(path).size).toBeLessThanOrEqual(5_000_000);
  });

  it('answers what it was asked in its training', () => {
    // The first phrasing of every fourth entry, as a person would write it.
    const entries = corpus.filter(
      ({ after, file }, index) => after.length === 0 && !file.startsWith('09') && index % 4 === 0,
    );
    expect(entries.length).toBeGreaterThan(60);
    const asked = entries.map(
      ({ questions: [question = ''] }) => `${question[0]!.toUpperCase()}${question.slice(1)}?`,
    );
    const answers = ask(...asked.map((question) => [question]));
    const wrong = entries.filter(({ answer }, index) => answers[index] !== answer).map(({ id }) => id);
    // Near ties may fall either way on another CPU.
    expect(wrong.length, wrong.join(', ')).toBeLessThanOrEqual(2);
  });

  it('understands of phrasings in quite other words as many as its page says', () => {
    const entries = corpus.filter(({ after, file }) => after.length === 0 && !file.startsWith('09'));
    const asked = entries
      .flatMap(({ id, held_out }) => held_out.map((question) => ({ id, question })))
      .filter(({ question }) => !question.includes('{'));
    expect(asked.length).toBeGreaterThan(250);
    const answers = ask(...asked.map(({ question }) => [question]));
    const right = asked.filter(({ id }, index) => answers[index] === answerOf(id)).length;
    console.log(`held-out phrasings: ${right} of ${asked.length} answered word for word`);
    expect(right / asked.length).toBeGreaterThan(held_out_share_min);
  });

  it.each(everydayQuestions)('%s', (question, words) => {
    expect(ask([question])[0]).toMatch(words);
  });

  it.each(misunderstood)('misunderstands %s, as its page says', (question, words) => {
    expect(ask([question])[0]).not.toMatch(words);
    expect(page).toContain(question);
  });

  it('says of everything else that it does not know it', () => {
    const answers = ask(...elsewhere.map((question) => [question]));
    const mistaken = answers.filter((answer) => !answer.includes('very small example model'));
    expect(mistaken.length, mistaken.join('\n')).toBeLessThanOrEqual(mistaken_max);
  });

  it('goes on in a conversation, with a system message or without', () => {
    const first = 'How do I deploy a model?';
    const [stopped, thanked] = ask(
      [first, answerOf('deploy'), 'and how do i stop it?'],
      [first, answerOf('deploy'), 'And how do I stop it?', answerOf('deploy-then-stop'), 'thanks!'],
    );
    expect(stopped).toContain('`hpcserve stop my-deployment`');
    expect(thanked).toContain('You are welcome');
    const [told] = answersTo([promptOf([first], 'You are a helpful assistant.')]);
    expect(told!.text).toContain('`hpcserve deploy model.yaml`');
  });

  it('says the tokens that libllama says', () => {
    const prompts = everydayQuestions.map(([question]) => promptOf([question]));
    const context = reference(path, {});
    try {
      const answers = answersTo(prompts);
      for (const [index, { tokens }] of answers.entries())
        for (const [at, row] of referenceRows(context, prompts[index]!, tokens).entries())
          if (argmax(row) !== tokens[at])
            expect(topGap(row), `${everydayQuestions[index]![0]}, token ${at}`).toBeLessThan(near_tie);
    } finally {
      context.close();
    }
  });
});
