/** Questions of ssh at the terminal: passphrases, passwords, one-time codes. */
import { createInterface } from 'node:readline/promises';
import { Writable } from 'node:stream';
import type { AskPerson } from '../../slurm/ssh/authentication.ts';

export function askAtTerminal(signal: AbortSignal): AskPerson {
  return async (question, { hidden }) => {
    if (!hidden) return ask(question, process.stderr, signal);
    process.stderr.write(question);
    // readline echoes what is typed to its output: nobody shall see this.
    const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
    try {
      return await ask('', nowhere, signal);
    } finally {
      process.stderr.write('\n');
    }
  };
}

async function ask(question: string, output: NodeJS.WritableStream, signal: AbortSignal): Promise<string> {
  const terminal = createInterface({ input: process.stdin, output, terminal: true });
  try {
    return await terminal.question(question, { signal });
  } finally {
    terminal.close();
  }
}
