/** A conversation at the terminal: a line is a question, the answer is shown as it comes, and the model knows both. */
import { createInterface } from 'node:readline';
import type { GatewayAddress } from '../../control/gateway/client.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { printable } from '../format/style.ts';
import { streamOf, textOfChunk } from './stream.ts';

interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

export interface Conversation {
  gateway: GatewayAddress;
  key: string;
  model: string;
  system?: string | undefined;
  max_tokens?: number | undefined;
  temperature?: number | undefined;
  seed?: number | undefined;
}

/**
 * Reads questions from stdin until it ends (Ctrl-D) or `/quit`. Ctrl-C ends an answer, and where nothing is being
 * answered the command. What is refused is shown, and the conversation goes on.
 * @param signal ends it at once
 * @throws its reason
 */
export async function converse(context: CliContext, with_: Conversation, signal: AbortSignal): Promise<void> {
  const { tty } = context;
  // A terminal that is gone can neither be read nor be given back its ways: who hung up is told by a signal.
  process.stdin.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EIO') throw error;
  });
  const lines = createInterface({
    input: process.stdin,
    output: process.stderr,
    terminal: tty.stdin && tty.stderr,
    prompt: tty.stdin ? '> ' : '',
  });
  let answering: AbortController | undefined;
  const interrupt = (): void => (answering ? answering.abort() : context.interrupt());
  const end = (): void => lines.close();
  let isOver = false;
  lines.once('close', () => {
    isOver = true;
  });
  // A key of the terminal, where there is one; else the signal of the command.
  lines.on('SIGINT', interrupt);
  signal.addEventListener('abort', end, { once: true });
  const messages: Message[] = with_.system === undefined ? [] : [{ role: 'system', content: with_.system }];
  try {
    lines.prompt();
    for await (const line of lines) {
      const question = line.trim();
      if (question === '/quit' || signal.aborted) break;
      if (question !== '') {
        answering = new AbortController();
        messages.push({ role: 'user', content: question });
        const any = AbortSignal.any([signal, answering.signal]);
        const answer = await oneAnswer(context, with_, messages, any);
        if (answer === undefined) messages.pop();
        else messages.push({ role: 'assistant', content: answer });
        answering = undefined;
      }
      if (!isOver) lines.prompt();
    }
    signal.throwIfAborted();
  } finally {
    signal.removeEventListener('abort', end);
    lines.close();
  }
}

/** @returns undefined where there was none, which was said */
async function oneAnswer(
  context: CliContext,
  { gateway, key, model, max_tokens, temperature, seed }: Conversation,
  messages: readonly Message[],
  signal: AbortSignal,
): Promise<string | undefined> {
  const body = { model, stream: true, messages, max_tokens, temperature, seed };
  let answer = '';
  try {
    for await (const data of streamOf(gateway, key, body, signal)) {
      const text = textOfChunk(data);
      answer += text;
      context.write(context.tty.stdout ? printable(text) : text);
    }
  } catch (error) {
    if (!signal.aborted) {
      if (!(error instanceof HpcserveError)) throw error;
      context.note(printable(error.toText()));
      return undefined;
    }
  }
  context.write('\n');
  return answer;
}
