/** A model whose template thinks: its reasoning apart from its answer, counted, and bounded where that is asked for. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as shapes from './shapes.ts';
import { openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';
const body = {
  model: 'org/thinker',
  messages: [{ role: 'user' as const, content: 'How much is 6 × 7?' }],
  max_tokens: 40,
  seed: 5,
  temperature: 1,
};

let stage: Stage;
beforeAll(async () => {
  stage = await openStage();
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

async function ask(more: object) {
  const answer = await stage.post(chatPath, { ...body, ...more });
  if (answer.status !== 200) throw new Error(await answer.text());
  const { choices, usage } = shapes.chatCompletion.parse(await answer.json());
  return { ...choices[0]!.message, finish: choices[0]!.finish_reason, usage };
}
const reasoned = ({
  usage,
}: {
  usage: { completion_tokens_details?: { reasoning_tokens: number } | undefined };
}) => usage.completion_tokens_details!.reasoning_tokens;

describe('reasoning', () => {
  it('without an end takes all tokens, and leaves no answer', async () => {
    const answer = await ask({});
    expect(answer.content).toBe('');
    expect(answer.reasoning_content!.length).toBeGreaterThan(20);
    expect(reasoned(answer)).toBe(40);
  });

  it('with a budget ends there, and the answer follows', async () => {
    const free = await ask({});
    for (const more of [{ reasoning: { max_tokens: 10 } }, { thinking_token_budget: 10 }]) {
      const answer = await ask(more);
      expect(answer.usage.completion_tokens).toBe(40);
      expect(answer.content!.length).toBeGreaterThan(10);
      expect(free.reasoning_content!.startsWith(answer.reasoning_content!)).toBe(true);
      // Ten, and those of the mark that ends it.
      expect(reasoned(answer)).toBeGreaterThan(10);
      expect(reasoned(answer)).toBeLessThan(25);
      expect(answer.content).not.toContain('think>');
    }
  });

  it('of no tokens at all', async () => {
    const answer = await ask({ reasoning: { max_tokens: 0 } });
    expect(answer.reasoning_content).toBeUndefined();
    expect(answer.content!.length).toBeGreaterThan(10);
  });

  it('effort is a share of the answer; none asks the template not to begin', async () => {
    const [low, high] = [
      await ask({ reasoning_effort: 'low' }),
      await ask({ reasoning: { effort: 'high' } }),
    ];
    expect(reasoned(low)).toBeGreaterThanOrEqual(8);
    expect(reasoned(high)).toBeGreaterThanOrEqual(32);
    expect(reasoned(low)).toBeLessThan(reasoned(high));
    const none = await ask({ reasoning_effort: 'none' });
    expect([none.reasoning_content, reasoned(none)]).toEqual([undefined, 0]);
    expect(none.usage.prompt_tokens).toBeLessThan(low.usage.prompt_tokens);
  });

  it('streamed is what it is whole, and a schema binds the answer behind it', async () => {
    const more = {
      reasoning: { max_tokens: 6 },
      response_format: {
        type: 'json_schema',
        json_schema: { name: 'n', schema: { type: 'integer', minimum: 0, maximum: 99 } },
      },
    };
    const whole = await ask(more);
    expect(Number(whole.content)).toBeLessThan(100);
    expect(whole.finish).toBe('stop');
    const { events } = await stage.events(chatPath, { ...body, ...more });
    const deltas = events.map((event) => shapes.chatChunk.parse(event).choices[0]!.delta);
    expect(deltas.map(({ content }) => content ?? '').join('')).toBe(whole.content);
    expect(deltas.map(({ reasoning_content }) => reasoning_content ?? '').join('')).toBe(
      whole.reasoning_content,
    );
  });

  it('of each of n answers, and of an answer that is continued in the middle of its end', async () => {
    const two = await stage.post(chatPath, { ...body, n: 2, reasoning: { max_tokens: 5 } });
    const { choices } = shapes.chatCompletion.parse(await two.json());
    for (const { message } of choices) expect(message.content!.length).toBeGreaterThan(5);
  });

  it('a budget that is no number is refused', async () => {
    const answer = await stage.post(chatPath, { ...body, reasoning: { max_tokens: -1 } });
    expect(answer.status).toBe(400);
    expect(shapes.errorEnvelope.parse(await answer.json()).error.param).toBe('reasoning.max_tokens');
  });
});
