/** What each program finds at a server, whatever engine is behind it. */
import { expect, test } from 'vitest';
import type { ClientTools } from '../../engines/environments.ts';
import { documents, task_names } from './tasks.ts';
import {
  aiperf,
  guidellm,
  type Load,
  lmEval,
  type Measured,
  type Target,
  type TaskSample,
  tool_ms,
  vllmBench,
} from './tools.ts';

const load: Load = { requests: 6, prompt_tokens: 32, answer_tokens: 12 };

function expectAll({ succeeded, failed, answer_tokens, report }: Measured): void {
  expect({ succeeded, failed, answer_tokens }, report).toEqual({
    succeeded: load.requests,
    failed: 0,
    answer_tokens: load.answer_tokens,
  });
}

const limit_ms = 2 * tool_ms + 10_000;

/** @param at the server, once it is there; its tokenizer puts nothing before a text */
export function testTools(tools: ClientTools, at: () => Target & { tasks: string }): void {
  test.each(['/v1/chat/completions', '/v1/completions'] as const)(
    'guidellm measures %s',
    async (path) => expectAll(await guidellm(tools, at(), load, path)),
    limit_ms,
  );

  test.each([
    ['chat', ['--use-server-token-count', '--per-chunk-usage']],
    ['completions', ['--use-server-token-count']],
  ] as const)(
    'aiperf measures %s %s',
    async (endpoint, more) => expectAll(await aiperf(tools, at(), load, endpoint, more)),
    limit_ms,
  );

  test.each([
    ['openai', ['--logprobs', '2']],
    ['openai-chat', []],
  ] as const)(
    'vllm bench serve measures %s %s',
    async (backend, more) => expectAll(await vllmBench(tools, at(), load, backend, more)),
    limit_ms,
  );

  test(
    'lm-eval has the same log-likelihoods by token ids and by text',
    async () => {
      const { tasks, tokenizer } = at();
      const names = [task_names.choice, task_names.generate, task_names.rolling];
      const ask = (tokenized_requests: boolean) =>
        lmEval(tools, at(), 'local-completions', names, tasks, {
          tokenizer,
          tokenizer_backend: 'huggingface',
          tokenized_requests,
          max_length: 512,
        });
      const byIds = await ask(true);
      const byText = await ask(false);
      for (const samples of [byIds, byText]) {
        const choices = samples.get(task_names.choice)!.map(likelihoods);
        expect(choices.map((each) => each.length)).toEqual(documents.map((each) => each.choices.length));
        for (const likelihood of choices.flat()) expect(likelihood).toBeLessThan(-0.1);
        expect(samples.get(task_names.generate)).toHaveLength(documents.length);
      }
      for (const task of [task_names.choice, task_names.rolling]) {
        const [ids, text] = [byIds, byText].map((samples) => samples.get(task)!.flatMap(likelihoods));
        for (const [index, likelihood] of ids!.entries()) expect(text![index]).toBeCloseTo(likelihood, 2);
      }
      expect(byText.get(task_names.generate)!.map(({ filtered_resps }) => filtered_resps)).toEqual(
        byIds.get(task_names.generate)!.map(({ filtered_resps }) => filtered_resps),
      );
    },
    limit_ms,
  );

  test(
    'lm-eval has answers of chats',
    async () => {
      const names = [task_names.generate];
      const samples = await lmEval(tools, at(), 'local-chat-completions', names, at().tasks);
      for (const { filtered_resps } of samples.get(task_names.generate)!)
        expect(filtered_resps).toEqual([expect.stringMatching(/\S/)]);
    },
    limit_ms,
  );
}

/** Of a whole text one number, of choices a pair each: the log-likelihood, and whether it is the likeliest. */
function likelihoods({ filtered_resps }: TaskSample): number[] {
  return filtered_resps.map((each) => Number(Array.isArray(each) ? each[0] : each));
}
