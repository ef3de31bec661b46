import { text as readAll } from 'node:stream/consumers';
import { type Command, InvalidArgumentError } from 'commander';
import { z } from 'zod';
import { refusal } from '../../control/gateway/admin.ts';
import { askOverHttp, type GatewayAddress, readAnswer, reasonOf } from '../../control/gateway/client.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { openEndpoint } from '../site-session.ts';

interface ChatOptions {
  system?: string;
  maxTokens?: number;
  temperature?: number;
  seed?: number;
}

const chunkSchema = z.looseObject({
  choices: z
    .array(
      z.looseObject({
        delta: z
          .looseObject({ content: z.string().nullish(), reasoning_content: z.string().nullish() })
          .optional(),
      }),
    )
    .default([]),
  error: z.looseObject({ message: z.string() }).optional(),
});

export function registerChat(command: Command, context: CliContext): void {
  command
    .option('--url <url>', 'base URL of a gateway, instead of that of the site')
    .option('--system <text>', 'system message')
    .option('--max-tokens <count>', 'longest answer', parseNumber)
    .option('--temperature <t>', 'sampling temperature', parseNumber)
    .option('--seed <number>', 'seed of sampling', parseNumber)
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve chat my-model "Why do ships float?"
  $ hpcserve chat my-model --max-tokens 64 < question.txt
  $ hpcserve chat my-model "Count to three" --json     # the chunks as they come`,
    )
    .action(async (model: string, words: string[], options: ChatOptions) => {
      const prompt = words.length > 0 ? words.join(' ') : await promptFromStdin(context);
      const endpoint = await openEndpoint(context);
      const body = {
        model,
        stream: true,
        messages: [
          ...(options.system === undefined ? [] : [{ role: 'system', content: options.system }]),
          { role: 'user', content: prompt },
        ],
        max_tokens: options.maxTokens,
        temperature: options.temperature,
        seed: options.seed,
      };
      for await (const data of streamOf(endpoint, endpoint.key, body, context.signal)) {
        if (context.json) context.out(data);
        const chunk = chunkSchema.parse(JSON.parse(data));
        if (chunk.error)
          throw new HpcserveError('E_GATEWAY_ANSWER', {
            what: 'the answer broke off',
            because: chunk.error.message,
          });
        if (!context.json) context.write(safe(context, chunk.choices[0]?.delta?.content ?? ''));
      }
      if (!context.json) context.write('\n');
    });
}

/** The `data:` payloads of a server-sent event stream, up to `[DONE]`. */
async function* streamOf(
  gateway: GatewayAddress,
  bearer: string,
  body: unknown,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const url = new URL(`${gateway.url}/chat/completions`);
  let response: Awaited<ReturnType<typeof askOverHttp>>;
  try {
    response = await askOverHttp(gateway, url.pathname, { method: 'POST', bearer, body, signal });
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `the gateway does not answer at ${url.origin}`,
      because: reasonOf(error),
      cause: error,
    });
  }
  const { statusCode = 0 } = response;
  if (statusCode < 200 || statusCode > 299) throw refusal(url, await readAnswer(response));
  let rest = '';
  for await (const text of response.setEncoding('utf8') as AsyncIterable<string>) {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice('data:'.length).trim();
      if (data === '[DONE]') return;
      yield data;
    }
  }
  throw new HpcserveError('E_GATEWAY_ANSWER', {
    what: 'the answer broke off',
    because: 'the connection ended before [DONE]',
  });
}

/** On a terminal a model's control characters are made visible; a pipe gets the text as it is. */
function safe(context: CliContext, text: string): string {
  return context.tty.stdout ? printable(text) : text;
}

async function promptFromStdin(context: CliContext): Promise<string> {
  if (!context.tty.stdin) {
    const prompt = await readAll(process.stdin);
    if (prompt.trim() !== '') return prompt;
  }
  throw new HpcserveError('E_USAGE', {
    what: 'there is no prompt',
    try: ['hpcserve chat MODEL "a question"', 'hpcserve chat MODEL < file'],
  });
}

function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('a number.');
  return value;
}
