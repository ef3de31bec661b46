/** What a continued request says of tokens that were given before it. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { spliced } from '../../../../gateway/relay/body-edits.ts';
import { earlierPenalties } from '../../../../gateway/relay/journal/earlier-penalties.ts';
import { JournalMemory } from '../../../../gateway/relay/journal/journal-memory.ts';
import { WrappedJournal } from '../../../../gateway/relay/journal/wrapped-journal.ts';
import { parseRequest } from '../../../../gateway/relay/request-body.ts';
import { RequestScan } from '../../../../gateway/relay/request-scan.ts';

type Bias = Record<string, number>;

function biasOf(request: object, given: readonly number[]): unknown {
  const scan = new RequestScan(Buffer.from(JSON.stringify(request))).finish();
  const body = Buffer.concat([...spliced(scan.bytes, earlierPenalties(scan, given))]).toString();
  return (JSON.parse(body) as { logit_bias?: unknown }).logit_bias;
}

it('takes from each token what it lost undisturbed, together with what the engine counts from there on', () => {
  const token = fc.nat(5);
  fc.assert(
    fc.property(
      fc.array(token, { maxLength: 20 }),
      fc.array(token, { maxLength: 20 }),
      fc.integer({ min: -8, max: 8 }),
      fc.dictionary(fc.nat(5).map(String), fc.integer({ min: -10, max: 10 })),
      (before, after, quarters, logit_bias) => {
        // Exact in binary, so that sums are.
        const frequency_penalty = quarters / 4;
        const times = (list: readonly number[], of: number): number =>
          list.filter((each) => each === of).length;
        const bias = biasOf({ frequency_penalty, logit_bias }, before) as Bias;
        for (let each = 0; each <= 5; each++) {
          const undisturbed =
            (logit_bias[each] ?? 0) - frequency_penalty * times([...before, ...after], each);
          expect((bias[each] ?? 0) - frequency_penalty * times(after, each)).toBe(undisturbed);
        }
      },
    ),
  );
});

it('is part of the request with which an engine goes on behind ids, as is what is left of the least length', async () => {
  const request = {
    model: 'm',
    prompt: 'p',
    max_tokens: 9,
    min_tokens: 5,
    temperature: 1,
    frequency_penalty: 0.5,
  };
  const parsed = parseRequest(new RequestScan(Buffer.from(JSON.stringify(request))).finish(), 'completions');
  const began = { engine: 'vllm', precision: 'bf16' };
  const journal = new WrappedJournal(new JournalMemory(), '/v1/completions', parsed, began);
  for (const choice of [
    { text: 'AB', token_ids: [65, 66], prompt_token_ids: [112] },
    { text: 'A', token_ids: [65] },
  ]) {
    const chunk = { id: 'cmpl-1', created: 7, model: 'm', choices: [{ index: 0, ...choice }] };
    const bytes = Buffer.from(`data: ${JSON.stringify(chunk)}\n\n`);
    journal.see(bytes, 0, bytes.length);
  }
  const continued = await journal.continued(parsed, {
    ...began,
    context_tokens: 100,
    detokenize: async (ids) => Buffer.from(ids).toString(),
  });
  if (typeof continued === 'string') throw new Error(continued);
  expect(JSON.parse(Buffer.concat([...continued.body]).toString())).toMatchObject({
    prompt: [112, 65, 66, 65],
    max_tokens: 6,
    min_tokens: 2,
    logit_bias: { '65': -1, '66': -0.5 },
  });
});

it('leaves requests alone that hold nothing against frequency, or whose bias is none', () => {
  expect(biasOf({ presence_penalty: 1 }, [1, 2])).toBeUndefined();
  expect(biasOf({ frequency_penalty: 0, logit_bias: { '1': 2 } }, [1])).toEqual({ '1': 2 });
  expect(biasOf({ frequency_penalty: 1, logit_bias: 'much' }, [1])).toBe('much');
  expect(biasOf({ frequency_penalty: 1, logit_bias: null }, [3, 3])).toEqual({ '3': -2 });
});

it('goes no further than engines do', () => {
  expect(biasOf({ frequency_penalty: 2 }, new Array(80).fill(7))).toEqual({ '7': -100 });
});
