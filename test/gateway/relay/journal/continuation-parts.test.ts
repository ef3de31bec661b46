/** What a stream needs that goes on behind token ids: pure parts, compared with answers that were not disturbed. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ChoiceSoFar } from '../../../../gateway/relay/journal/answer-so-far.ts';
import { JournalMemory } from '../../../../gateway/relay/journal/journal-memory.ts';
import { phaseOf } from '../../../../gateway/relay/journal/reasoning-phase.ts';
import { ReasoningSplit } from '../../../../gateway/relay/journal/reasoning-split.ts';
import { settledText } from '../../../../gateway/relay/journal/settled-text.ts';
import { StopBoundary } from '../../../../gateway/relay/journal/stop-boundary.ts';
import { withoutTokenIds } from '../../../../gateway/relay/journal/token-id-members.ts';

/** Texts of few letters, in which short strings are found often. */
const letters = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 30 });
const pieces = (text: string, cuts: readonly number[]): string[] => {
  const parts: string[] = [];
  let rest = text;
  for (const cut of cuts) {
    parts.push(rest.slice(0, cut));
    rest = rest.slice(cut);
  }
  return [...parts, rest];
};
const cuts = fc.array(fc.nat(4), { maxLength: 12 });

/** Where an engine ends a text: at the first of its stop strings that is whole. */
function stoppedAt(text: string, stops: readonly string[]): number | undefined {
  for (let end = 1; end <= text.length; end++)
    for (const stop of stops) if (text.slice(0, end).endsWith(stop)) return end - stop.length;
  return undefined;
}

describe('stop strings at the boundary', () => {
  it('end an answer where they would have ended it undisturbed', () => {
    fc.assert(
      fc.property(
        letters,
        letters,
        fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 5 }),
        cuts,
        (before, after, stop, at) => {
          const whole = before + after;
          const end = stoppedAt(whole, [stop]);
          // It had not ended before; what ends it behind the boundary alone is the engine's business.
          fc.pre(stoppedAt(before, [stop]) === undefined && (end === undefined || end < before.length));
          const held = Math.min(stop.length - 1, before.length);
          const pending = before.slice(before.length - held);
          const boundary = new StopBoundary({ strings: [stop], included: false, behind: 0 }, before, pending);
          let text = before.slice(0, before.length - held);
          let stopped: string | undefined;
          const parts = pieces(after, at);
          for (const [index, part] of parts.entries()) {
            const next = boundary.next(part, index === parts.length - 1, index + 1);
            text += next.text;
            stopped = next.stopped;
            if (stopped !== undefined) break;
          }
          expect([text, stopped]).toEqual(
            end === undefined ? [whole, undefined] : [whole.slice(0, end), stop],
          );
        },
      ),
      { numRuns: 2000 },
    );
  });

  it('are sent themselves where they are asked for, and count only behind the least number of tokens', () => {
    const included = new StopBoundary({ strings: ['END'], included: true, behind: 0 }, 'the E', '');
    expect(included.next('ND of', false, 1)).toEqual({ text: 'ND', stopped: 'END' });
    const late = new StopBoundary({ strings: ['END'], included: false, behind: 5 }, 'the E', 'E');
    expect(late.next('ND of', false, 2)).toEqual({ text: 'END of' });
  });

  it('are not looked for where there are none, and what is pending comes first', () => {
    const none = new StopBoundary({ strings: [], included: false, behind: 0 }, 'abc', 'c');
    expect([none.next('', false, 1), none.next('d', false, 2)]).toEqual([{ text: 'c' }, { text: 'd' }]);
  });
});

describe('reasoning that goes on', () => {
  it('is apart from what follows it, however it comes', () => {
    fc.assert(
      fc.property(letters, letters, cuts, (thought, said, at) => {
        const split = new ReasoningSplit('reasoning');
        const together = { reasoning: '', content: '' };
        const parts = pieces(`${thought}</think>${said}`, at);
        for (const [index, part] of parts.entries()) {
          const delta = split.next(part, index === parts.length - 1);
          together.reasoning += delta.reasoning ?? '';
          together.content += delta.content ?? '';
        }
        expect(together).toEqual({ reasoning: thought, content: said });
      }),
    );
    const cut = new ReasoningSplit('reasoning_content');
    expect([cut.next('x</thi', false), cut.next('', true)]).toEqual([
      { reasoning_content: 'x' },
      { reasoning_content: '</thi' },
    ]);
  });

  const choice = (
    has: Partial<Pick<ChoiceSoFar, 'content' | 'reasoning' | 'reasoning_member'>>,
  ): ChoiceSoFar => Object.assign(new ChoiceSoFar(new JournalMemory()), has);
  const reasoned = (reasoning: string, content = '') =>
    choice({ reasoning, content, reasoning_member: 'reasoning' });

  it.each([
    ['in its reasoning', reasoned('hm'), '<think>hm', '', { pending: '', reasoning: 'reasoning' }],
    [
      'that the prompt has opened',
      reasoned('hm'),
      '\nhm m',
      '<think>\n',
      { pending: ' m', reasoning: 'reasoning' },
    ],
    ['behind it', reasoned('hm', 'So'), '<think>\nhm\n</think>\n\nSo it', '', { pending: ' it' }],
    ['without any', choice({ content: 'So' }), 'So', 'assistant: ', { pending: '' }],
    ['with marks that nobody knows', reasoned('hm'), '[THINK]hm', '', undefined],
    ['whose text is another', reasoned('hm', 'So'), '<think>ha</think>So', '', undefined],
    ['that its engine may not have told yet', choice({}), '<think>hm', '', undefined],
  ])('is found out of what its tokens spell: %s', (_, has, text, before, phase) => {
    expect(phaseOf(has, { tokens: 9, text, before })).toEqual(phase);
  });
});

describe('the last whole character', () => {
  const bytes = async (ids: readonly number[]): Promise<string> => Buffer.from(ids).toString();
  const prompt = [...Buffer.from('Frage: ')];

  it('is found among tokens that are bytes', async () => {
    const said = [...Buffer.from('für 😀')];
    for (let length = 1; length <= said.length; length++) {
      const text = Buffer.from(said.slice(0, length))
        .toString()
        .replace(/\ufffd+$/, '');
      expect(await settledText(prompt, said.slice(0, length), bytes)).toEqual({
        tokens: Buffer.byteLength(text),
        text,
        before: 'Frage: ',
      });
    }
  });

  it('is not looked for without end, nor where tokens spell another text behind others', async () => {
    expect(await settledText(prompt, Array(40).fill(0xe2), bytes)).toBeUndefined();
    expect(await settledText(prompt, [97], async (ids) => `${ids.length}`)).toBeUndefined();
  });
});

describe('lists of token ids in an event', () => {
  const left = (event: object): string => {
    const bytes = Buffer.from(`xx${JSON.stringify(event)}\n\n`);
    return bytes.toString('utf8', withoutTokenIds(bytes, 2, bytes.length));
  };

  it('become null, and every other byte stays', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.array(fc.nat(), { minLength: 2 }), (text, ids) => {
        const event = { a: text, choices: [{ text, token_ids: ids }], prompt_token_ids: ids, b: [text] };
        const without = { ...event, choices: [{ text, token_ids: null }], prompt_token_ids: null };
        expect(left(event)).toBe(`${JSON.stringify(without)}\n\n`);
      }),
    );
  });

  it('that do not end with their event are left alone, and so is what follows', () => {
    for (const behind of ['', 'data: {"b":[2]}\n\n']) {
      const text = 'data: {"a":1,"token_ids":[1,2,3,4\n\n';
      const bytes = Buffer.from(text + behind);
      expect(withoutTokenIds(bytes, 0, text.length)).toBe(0);
      expect(bytes.toString()).toBe(text + behind);
    }
  });

  it('go whole where null would be longer, and the event with them where nothing else is in it', () => {
    expect(left({ a: 1, token_ids: [] })).toBe('{"a":1}\n\n');
    const choice = { index: 0, delta: {}, logprobs: null, finish_reason: null, token_ids: [17, 4] };
    expect(left({ choices: [choice] })).toBe('');
    expect(left({ choices: [{ ...choice, token_ids: null }] })).toContain('token_ids');
  });
});
