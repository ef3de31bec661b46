/**
 * `npm run quickstart [-- MODEL_YAML]`: types the commands a new user would type, on the embedded `local` site, and
 * asks the deployed model one question as an OpenAI client would.
 */
import { spawnSync } from 'node:child_process';
import { join, relative, resolve } from 'node:path';
import { z } from 'zod';
import { packageRoot } from '../host/package-root.ts';
import { HpcserveError } from '../spec/errors/error.ts';

const command = join(packageRoot, 'cli/hpcserve.mjs');
const example = join(packageRoot, 'examples/quickstart.yaml');
const question = 'What is hpcserve?';
const what_it_is = 'the model is very small: it knows hpcserve and Slurm, and nothing else';

const deployed = z.object({ url: z.string(), key: z.string(), models: z.array(z.string()).min(1) });
const envelope = z.object({ error: z.object({ message: z.string(), code: z.string().nullish() }) });
const chunk = z.object({
  choices: z.array(z.object({ delta: z.object({ content: z.string().nullish() }) })),
  error: envelope.shape.error.optional(),
});

try {
  await main();
} catch (thrown) {
  const error = HpcserveError.from(thrown);
  process.stderr.write(`${error.toText()}\n`);
  process.exit(error.exit_code);
}

async function main(): Promise<void> {
  const [named] = process.argv.slice(2);
  const deployment = named === undefined ? example : resolve(named);
  const view = process.stderr.isTTY ? 'tty' : 'plain';
  step(`hpcserve deploy ${named ?? relative(packageRoot, example)} --site local`);
  const endpoint = deployed.parse(
    JSON.parse(hpcserve(['deploy', deployment, '--site', 'local', '--yes', '--json', '--progress', view])),
  );
  step(`asking ${endpoint.models[0]}: ${question}`);
  const tokens = await ask(endpoint.url, endpoint.key, endpoint.models[0]!).catch((error: unknown) => {
    step('no answer came; hpcserve doctor --site local says');
    // Whatever it finds, the answer that did not come is what went wrong here.
    spawnSync(process.execPath, [command, 'doctor', '--site', 'local'], { stdio: ['ignore', 2, 'inherit'] });
    throw error;
  });
  step(`${tokens} chunks arrived${named === undefined ? `; ${what_it_is}` : ''}`);
  const shell = (words: string): string => `npm run --silent hpcserve -- ${words}`;
  process.stdout.write(
    [
      '',
      `URL  ${endpoint.url}`,
      `key  ${endpoint.key}`,
      '',
      `In a browser, with that key: ${endpoint.url.replace(/v1$/, 'dashboard/')}`,
      '',
      'Ask it yourself:',
      `  curl -N ${endpoint.url}/chat/completions -H 'Authorization: Bearer ${endpoint.key}' -H 'Content-Type: application/json' -d '{"model": "${endpoint.models[0]}", "stream": true, "messages": [{"role": "user", "content": "${question}"}]}'`,
      '',
      'Look at it and end it:',
      `  ${shell('status quickstart --site local')}`,
      `  ${shell('logs quickstart --site local')}`,
      `  ${shell('stop quickstart --site local')}`,
      '',
    ].join('\n'),
  );
}

/** Runs the command line itself; its progress goes to the terminal, its JSON comes back. */
function hpcserve(args: string[]): string {
  const result = spawnSync(process.execPath, [command, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
  });
  if (result.status !== 0) process.exit(result.status ?? 1);
  const lines = result.stdout.trim().split('\n');
  return lines[lines.length - 1] ?? '';
}

async function ask(url: string, key: string, name: string): Promise<number> {
  const response = await fetch(`${url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: name,
      stream: true,
      max_tokens: 128,
      temperature: 0,
      messages: [{ role: 'user', content: question }],
    }),
  });
  if (!response.ok || !response.body) {
    const text = await response.text();
    throw noAnswer(
      envelope.safeParse(readJson(text)).data?.error ?? { message: `${response.status} ${text}` },
    );
  }
  let rest = '';
  let chunks = 0;
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
      const event = chunk.parse(JSON.parse(line.slice('data: '.length)));
      if (event.error) throw noAnswer(event.error);
      process.stdout.write(event.choices[0]?.delta.content ?? '');
      chunks++;
    }
  }
  process.stdout.write('\n');
  return chunks;
}

function noAnswer({ message, code }: { message: string; code?: string | null | undefined }): HpcserveError {
  return new HpcserveError('E_QUICKSTART', {
    what: 'the model is deployed, and its first question was not answered',
    because: code ? `${message} [${code}]` : message,
  });
}

function readJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // A proxy's page, say: it is shown as it is.
    return undefined;
  }
}

function step(text: string): void {
  process.stderr.write(`\n▸ ${text}\n`);
}
