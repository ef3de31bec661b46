import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, resolve } from 'node:path';
import type { Command } from 'commander';
import { deploy } from '../../control/deploy.ts';
import { CredentialFile } from '../../control/state/credentials.ts';
import { stopDeployment } from '../../control/stop.ts';
import { packageRoot } from '../../host/package-root.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { converse } from '../chat/converse.ts';
import type { CliContext } from '../context.ts';
import { parseNumber } from '../parse-number.ts';
import { progressView } from '../progress/view.ts';
import { openSession, readSpec } from '../site-session.ts';

/** Small enough to come along; it answers questions about hpcserve and Slurm (`examples/guide/README.md`). */
const guide = join(packageRoot, 'examples/guide.gguf');
const deployment = 'try';

interface TryOptions {
  maxTokens?: number;
}

export function registerTry(command: Command, context: CliContext): void {
  command
    .option('--max-tokens <count>', 'longest answer', parseNumber)
    .addHelpText(
      'after',
      `
Deploys a model on this machine, in a folder of its own that nothing else uses, and opens a chat in the terminal: type a
question and Enter; Ctrl-C ends an answer, Ctrl-D or /quit the chat. Then everything is ended and removed again.
Without a file it is the guide, a very small model that comes along: it answers short questions about hpcserve and Slurm
and knows nothing else. Questions may come from a pipe, one a line.

Examples:
  $ hpcserve try
  $ hpcserve try ~/models/qwen3-0.6b.gguf
  $ echo 'How do I deploy a model?' | hpcserve try`,
    )
    .action(async (file: string | undefined, options: TryOptions) => {
      const folder = mkdtempSync(join(tmpdir(), 'hpcserve-try-'));
      try {
        await tryIn(folder, context, file, options.maxTokens);
      } finally {
        rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
      }
    });
}

async function tryIn(
  folder: string,
  context: CliContext,
  file: string | undefined,
  max_tokens: number | undefined,
): Promise<void> {
  context.configuration.setFlag('site', '--site', 'local');
  context.configuration.setFlag('state_dir', '--state-dir', folder);
  const model = modelFor(context, file);
  const spec_file = join(folder, 'model.yaml');
  const name = basename(model).replace(/\.gguf$/, '');
  writeFileSync(
    spec_file,
    JSON.stringify({
      name: deployment,
      models: [{ name, source: model, engine: 'native', max_sequences: 2 }],
    }),
  );
  // A terminal that is closed ends it as Ctrl-C does. The kernel says so, and often a shell or the terminal again.
  const hangUp = new AbortController();
  process.on('SIGHUP', () => hangUp.abort(new Error('the terminal was closed')));
  const signal = AbortSignal.any([context.signal, hangUp.signal]);
  const read = readSpec(context, spec_file);
  const view = progressView({ ...context, json: false });
  const operations = {
    ...openSession(context, { command: 'hpcserve try', spec: read, emit: (event) => view.show(event) }),
    signal,
  };
  try {
    const { url, key } = await deploy(operations, {
      spec: read.spec,
      spec_file,
      detach: false,
      timeout_ms: 0,
      stop_first: false,
      credentials: new CredentialFile(join(folder, 'credentials.json')),
      confirm: async () => true,
      confirm_promise: async () => true,
    });
    view.close();
    context.note(`URL ${url} · key ${key}`);
    if (context.tty.stdin)
      context.note(`Ask ${name}. Ctrl-C ends an answer, Ctrl-D or /quit ends all of it.`);
    await converse(context, { gateway: { url }, key, model: name, max_tokens }, signal);
  } finally {
    view.close();
    context.note('ending what was started …');
    // What was interrupted ends in order all the same.
    const ending = { ...operations, signal: new AbortController().signal, emit: () => {} };
    if (operations.store.load(deployment)) await stopDeployment(ending, deployment, { keep_gateway: false });
  }
}

function modelFor(context: CliContext, file: string | undefined): string {
  if (file === undefined) return guide;
  const path = resolve(context.working_folder, file);
  if (existsSync(path)) return path;
  throw new HpcserveError('E_USAGE', { what: `there is no file ${path}`, try: 'hpcserve try [GGUF]' });
}
