/** What a gateway remembers of streams, and what it makes of it. */
import type { ServerResponse } from 'node:http';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AnswerSoFar } from '../../../../gateway/relay/journal/answer-so-far.ts';
import type { ContinuingReplica } from '../../../../gateway/relay/journal/journal.ts';
import { JournalMemory } from '../../../../gateway/relay/journal/journal-memory.ts';
import { TokenJournal } from '../../../../gateway/relay/journal/token-journal.ts';
import { WrappedJournal } from '../../../../gateway/relay/journal/wrapped-journal.ts';
import { type ParsedRequest, parseRequest } from '../../../../gateway/relay/request-body.ts';
import { RequestScan } from '../../../../gateway/relay/request-scan.ts';
import { StreamRelay } from '../../../../gateway/relay/stream-relay.ts';
import type { ContinuedChoice } from '../../../../spec/wire.ts';

/** A response that keeps what is written to it. */
function sink(): { response: ServerResponse; written: () => string } {
  const parts: Buffer[] = [];
  const keep = (part?: Buffer | string): boolean => {
    if (part !== undefined) parts.push(Buffer.from(part as string));
    return true;
  };
  const response = { headersSent: true, write: keep, end: keep } as unknown as ServerResponse;
  return { response, written: () => Buffer.concat(parts).toString() };
}

/** A request that was read. */
function asked(body: string): ParsedRequest {
  return parseRequest(new RequestScan(Buffer.from(body)).finish(), 'completions');
}

function sent(body: readonly Buffer[]): string {
  return Buffer.concat([...body]).toString();
}

interface Said {
  choice: number;
  text: string;
  ids: number[];
}

const head = { id: 'chatcmpl-1', created: 7, model: 'm","hpcserve' };
const beginning = { hpcserve_prompt_tokens: 9, hpcserve_seed: 3, hpcserve_prompt_digest: 'd' };

function chunk({ choice, text, ids }: Said, first: boolean): { plain: string; extended: string } {
  const plain = { ...head, choices: [{ index: choice, delta: { content: text } }] };
  const extended = {
    ...plain,
    ...(first ? beginning : {}),
    ...(choice === 0 ? {} : { hpcserve_choice: choice }),
    hpcserve_token_ids: ids,
  };
  return {
    plain: `data: ${JSON.stringify(plain)}\n\n`,
    extended: `data: ${JSON.stringify(extended)}\n\n`,
  };
}

const said = fc.record({
  choice: fc.nat(2),
  text: fc.oneof(fc.string({ unit: 'binary' }), fc.constant('","hpcserve_token_ids":[1]}')),
  ids: fc.array(fc.nat(2 ** 31 - 1), { maxLength: 5 }),
});

describe('the journal of tokens', () => {
  it('cuts its part out and leaves every other byte, however the stream is cut into pieces', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(said, { minLength: 1, maxLength: 12 }),
        fc.array(fc.integer({ min: 1, max: 400 }), { maxLength: 30 }),
        async (list, cuts) => {
          const chunks = list.map((one, index) => chunk(one, index === 0));
          const memory = new JournalMemory();
          const journal = new TokenJournal(memory, 'f16', 3);
          const { response, written } = sink();
          const relay = new StreamRelay(response, {
            passUsage: false,
            ending: 'done',
            choices: 3,
            choices_each: 3,
            status: 200,
            writeHead: () => {},
            isContinuable: () => false,
            journal,
          });
          let rest = Buffer.from(chunks.map(({ extended }) => extended).join(''));
          for (const length of [...cuts, rest.length]) {
            if (rest.length === 0) break;
            // A copy each, as from a socket: the relay moves bytes within what it is given.
            relay.push(Buffer.from(rest.subarray(0, length)));
            rest = rest.subarray(length);
          }
          expect(written()).toBe(chunks.map(({ plain }) => plain).join(''));

          const continued = await journal.continued(asked('{"model":"m","seed":1,"n":3}'));
          if (typeof continued === 'string') throw new Error(continued);
          const body = JSON.parse(sent(continued.body)) as {
            seed: number;
            hpcserve_continue: { choices: ContinuedChoice[]; id: string; prompt_digest: string };
          };
          expect(body.seed).toBe(3);
          expect(body.hpcserve_continue).toMatchObject({ id: 'chatcmpl-1', created: 7, prompt_digest: 'd' });
          expect(body.hpcserve_continue.choices.map(({ token_ids }) => token_ids)).toEqual(
            [0, 1, 2].map((index) => list.filter(({ choice }) => choice === index).flatMap(({ ids }) => ids)),
          );
          const before = memory.left;
          journal.release();
          expect(memory.left).toBeGreaterThanOrEqual(before);
          expect(memory.left).toBe(new JournalMemory().left);
        },
      ),
    );
  });

  it('gives up, and gives its memory back, where there is none left; the stream itself goes on', async () => {
    const memory = new JournalMemory(1024);
    const journal = new TokenJournal(memory, 'f16', 3);
    for (let round = 0; round < 400; round++) {
      const { extended, plain } = chunk({ choice: 0, text: 'x', ids: [round] }, round === 0);
      const bytes = Buffer.from(extended);
      const cut = journal.take(bytes, 0, bytes.length);
      const left = bytes.toString('utf8', 0, cut) + bytes.toString('utf8', journal.cut_end);
      expect(left).toBe(plain);
    }
    expect(await journal.continued(asked('{"model":"m"}'))).toMatch(/memory/);
    expect(journal.progress).toEqual({ prompt_tokens: 9, completion_tokens: 400 });
    expect(memory.left).toBe(1024);
  });

  it('knows no way where the replica tells no tokens, or the request itself continues an answer', async () => {
    const silent = new TokenJournal(new JournalMemory(), 'f16', 1);
    const { plain, extended } = chunk({ choice: 0, text: 'x', ids: [1] }, true);
    silent.take(Buffer.from(plain), 0, plain.length);
    expect(await silent.continued(asked('{"model":"m"}'))).toMatch(/does not tell its tokens/);
    const journal = new TokenJournal(new JournalMemory(), 'f16', 1);
    journal.take(Buffer.from(extended), 0, extended.length);
    expect(await journal.continued(asked('{"model":"m","hpcserve_continue":{}}'))).toMatch(
      /itself continues/,
    );
    expect(journal.accepts('native', 'f16')).toBe(true);
    expect(journal.accepts('native', 'q4_0')).toBe(false);
    expect(journal.accepts('vllm', 'f16')).toBe(false);
  });
});

describe('a choice that nobody asked for', () => {
  it.each(['4294967294', '3', '-1', '0.5', '"length"'])(
    'is not kept, and the stream goes on: %s',
    async (index) => {
      const memory = new JournalMemory();
      const journal = new TokenJournal(memory, 'f16', 3);
      const first = chunk({ choice: 0, text: 'x', ids: [5] }, true);
      journal.take(Buffer.from(first.extended), 0, first.extended.length);
      const plain = 'data: {"id":"chatcmpl-1"';
      const event = Buffer.from(`${plain},"hpcserve_choice":${index},"hpcserve_token_ids":[6,7]}\n\n`);
      const cut = journal.take(event, 0, event.length);
      expect(event.toString('utf8', 0, cut) + event.toString('utf8', journal.cut_end)).toBe(`${plain}}\n\n`);
      expect(journal.progress).toEqual({ prompt_tokens: 9, completion_tokens: 1 });
      expect(await journal.continued(asked('{"model":"m","n":3}'))).toMatch(/nobody asked for/);
      journal.release();
      expect(memory.left).toBe(new JournalMemory().left);
    },
    10_000,
  );

  it.each([0.5, -1, 7])('takes no memory of a wrapped engine’s stream either: %s', (index) => {
    const memory = new JournalMemory();
    const answer = new AnswerSoFar(memory, 3);
    answer.read(`data: {"choices":[{"index":${index},"text":"abc","token_ids":[1,2,3]}]}\n\n`);
    answer.release();
    expect(memory.left).toBe(new JournalMemory().left);
  });
});

describe('the journal of a wrapped engine', () => {
  const event = (delta: object): Buffer =>
    Buffer.from(
      `data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`,
    );
  const body = asked('{"model":"m","messages":[],"max_tokens":5000}');
  const began = { engine: 'vllm', precision: 'f16' };
  const replica: ContinuingReplica = {
    ...began,
    context_tokens: 8192,
    detokenize: async (ids) => Buffer.from(ids).toString(),
  };
  const newJournal = (memory: JournalMemory, of = body): WrappedJournal =>
    new WrappedJournal(memory, '/v1/chat/completions', of, began);

  it('has all the text of a long answer, in bounded memory', async () => {
    const memory = new JournalMemory();
    const journal = newJournal(memory);
    const all = memory.left;
    let text = '';
    for (let word = 0; word < 3000; word++) {
      const bytes = event({ content: `wörd${word} ` });
      expect(journal.see(bytes, 0, bytes.length)).toBe(0);
      text += `wörd${word} `;
    }
    expect(all - memory.left).toBeLessThan(32 * 1024 + 2 * text.length + 1);
    const continued = await journal.continued(body, replica);
    if (typeof continued === 'string') throw new Error(continued);
    const request = JSON.parse(sent(continued.body)) as { messages: object[]; max_tokens: number };
    expect(request).toMatchObject({
      messages: [{ role: 'assistant', content: text }],
      max_tokens: 2000,
      continue_final_message: true,
      add_generation_prompt: false,
    });
    journal.release();
    expect(memory.left).toBe(all);
  });

  it.each([
    [{ tool_calls: [{ index: 0, function: { name: 'f', arguments: '{' } }] }, /tool call/],
    [{ reasoning_content: 'hm' }, /reasoning/],
  ])('knows no way behind %j', async (delta, why) => {
    const journal = newJournal(new JournalMemory());
    const bytes = event(delta);
    journal.see(bytes, 0, bytes.length);
    expect(await journal.continued(body, replica)).toMatch(why);
  });

  /** A chunk of a chat with the ids of its text, one byte each. */
  const told = (text: string, ids: readonly number[], more: object = {}): Buffer =>
    Buffer.from(
      `data: ${JSON.stringify({
        ...head,
        choices: [
          { index: 0, delta: { content: text }, logprobs: null, finish_reason: null, token_ids: ids },
        ],
        ...more,
      })}\n\n`,
    );
  const see = (journal: WrappedJournal, bytes: Buffer): string =>
    bytes.toString('utf8', journal.see(bytes, 0, bytes.length));
  const opening = told('', [], { prompt_token_ids: [72, 105] });

  it('takes ids out of what the client gets, unless it asked for them', () => {
    const silent = newJournal(new JournalMemory());
    expect(see(silent, told('"token_ids":[1]', [104, 105]))).toBe(
      told('"token_ids":[1]', []).toString().replace('"token_ids":[]', '"token_ids":null'),
    );
    expect(see(silent, Buffer.from(opening))).toContain('"prompt_token_ids":null}');
    const telling = newJournal(new JournalMemory(), asked('{"model":"m","return_token_ids":true}'));
    expect(see(telling, told('hi', [104, 105]))).toBe(told('hi', [104, 105]).toString());
  });

  it('goes on behind ids where they spell the text, with what is left, and forgets those of half a character', async () => {
    const journal = newJournal(new JournalMemory());
    see(journal, Buffer.from(opening));
    see(journal, told('aé', [97, 0xc3, 0xa9, 0xe2]));
    const continued = await journal.continued(body, replica);
    if (typeof continued === 'string') throw new Error(continued);
    expect(continued.path).toBe('/v1/completions');
    expect(JSON.parse(sent(continued.body))).toMatchObject({
      prompt: [72, 105, 97, 0xc3, 0xa9],
      max_tokens: 4997,
      messages: null,
      return_token_ids: true,
    });
    expect(journal.progress).toEqual({ prompt_tokens: 2, completion_tokens: 3 });
  });

  it.each<[string, Partial<ContinuingReplica>]>([
    ['of another precision', { precision: 'q4_0' }],
    ['of another engine', { engine: 'sglang' }],
    ['that spells other text', { detokenize: async (ids) => 'x'.repeat(ids.length) }],
  ])('goes on behind the text with a replica %s', async (_, other) => {
    const journal = newJournal(new JournalMemory());
    see(journal, Buffer.from(opening));
    see(journal, told('ab', [97, 98]));
    const continued = await journal.continued(body, { ...replica, ...other });
    if (typeof continued === 'string') throw new Error(continued);
    expect(continued.path).toBeUndefined();
    expect(JSON.parse(sent(continued.body))).toMatchObject({ continue_final_message: true });
  });

  it('does not trust ids where its engine counts more tokens', async () => {
    const journal = newJournal(new JournalMemory());
    see(journal, Buffer.from(opening));
    see(journal, told('ab', [97, 98], { usage: { completion_tokens: 5 } }));
    const continued = await journal.continued(body, replica);
    if (typeof continued === 'string') throw new Error(continued);
    expect(JSON.parse(sent(continued.body))).toMatchObject({
      continue_final_message: true,
      max_tokens: 4995,
    });
  });

  it.each([
    ['an image', { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] }],
    ['tools that may be called', { messages: [], tools: [{ type: 'function' }] }],
  ])('leaves %s to the chat of its engine', async (_, more) => {
    const request = asked(JSON.stringify({ model: 'm', max_tokens: 50, ...more }));
    const journal = newJournal(new JournalMemory(), request);
    see(journal, Buffer.from(opening));
    see(journal, told('ab', [97, 98]));
    const continued = await journal.continued(request, replica);
    if (typeof continued === 'string') throw new Error(continued);
    expect(continued.path).toBeUndefined();
  });

  it('asks for the whole again where nothing of a text is out', async () => {
    const journal = newJournal(new JournalMemory());
    see(journal, Buffer.from(opening));
    see(journal, told('', [0xe2]));
    const continued = await journal.continued(body, replica);
    if (typeof continued === 'string') throw new Error(continued);
    expect(JSON.parse(sent(continued.body))).toMatchObject({ messages: [], max_tokens: 5000 });
    expect(journal.progress).toEqual({ prompt_tokens: 2, completion_tokens: 0 });
  });
});
