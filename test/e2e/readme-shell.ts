/** The README as it is typed: its blocks of code, and a shell in a terminal. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type IPty, spawn as spawnPty } from 'node-pty';
import { expect, vi } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const readme = readFileSync(join(packageRoot, 'README.md'), 'utf8');

/** The blocks of code below a heading. */
export function blocksBelow(heading: string): string[] {
  const [, section] = readme.split(`\n## ${heading}\n`);
  expect(section, heading).toBeDefined();
  return [...section!.split('\n## ')[0]!.matchAll(/^```\n(.*?)^```$/gms)].map(([, text]) => text!);
}

/** A shell in a terminal, at which lines are typed. */
export class Terminal {
  readonly #pty: IPty;
  #screen = '';

  constructor(argv: readonly string[], environment: Record<string, string | undefined>) {
    const [program = '', ...args] = argv;
    this.#pty = spawnPty(program, args, { cols: 200, rows: 50, cwd: packageRoot, env: environment });
    this.#pty.onData((text) => {
      this.#screen += text;
    });
  }

  /** Types a line, and waits for its end. @returns what it printed, and its exit code */
  async type(line: string): Promise<{ text: string; code: number }> {
    const from = this.#screen.length;
    // A line of its own, so that what is typed stays as it stands.
    this.#pty.write(`${line}\recho "[exit $?]"\r`);
    const ended = /^\[exit (\d+)\]\r?$/m;
    await vi.waitFor(() => expect(this.#screen.slice(from)).toMatch(ended), {
      timeout: 90_000,
      interval: 100,
    });
    const text = this.#screen.slice(from).replaceAll(/\x1b\[[\d;?]*[a-zA-Z]|\r/g, '');
    return { text, code: Number(ended.exec(text)![1]) };
  }

  async waitFor(words: RegExp): Promise<void> {
    await vi.waitFor(() => expect(this.#screen).toMatch(words), { timeout: 60_000, interval: 100 });
  }

  close(): void {
    this.#pty.kill('SIGHUP');
  }
}
