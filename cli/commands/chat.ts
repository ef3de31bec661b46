import { text as readAll } from 'node:stream/consumers';
import type { Command } from 'commander';
import { HpcserveError } from '../../spec/errors/error.ts';
import { converse } from '../chat/converse.ts';
import { streamOf, textOfChunk } from '../chat/stream.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { parseNumber } from '../parse-number.ts';
import { openEndpoint } from '../site-session.ts';

interface ChatOptions {
  system?: string;
  maxTokens?: number;
  temperature?: number;
  seed?: number;
}

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
At a terminal and without a prompt it is a conversation: Ctrl-C ends an answer, Ctrl-D or /quit all of it.

Examples:
  $ hpcserve chat my-model
  $ hpcserve chat my-model "Why do ships float?"
  $ hpcserve chat my-model --max-tokens 64 < question.txt
  $ hpcserve chat my-model "Count to three" --json     # the chunks as they come`,
    )
    .action(async (model: string, words: string[], options: ChatOptions) => {
      if (words.length === 0 && context.tty.stdin && !context.json) {
        const endpoint = await openEndpoint(context);
        const { system, maxTokens: max_tokens, temperature, seed } = options;
        const { key } = endpoint;
        return converse(
          context,
          { gateway: endpoint, key, model, system, max_tokens, temperature, seed },
          context.signal,
        );
      }
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
        const text = textOfChunk(data);
        if (!context.json) context.write(safe(context, text));
      }
      if (!context.json) context.write('\n');
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
