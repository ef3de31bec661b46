/**
 * A real wrapped engine from end to end: `transformers serve` on a tiny model made here. Needs a Python that has
 * torch and transformers[serving]: $HPCSERVE_TEST_PYTHON, that of `npm run engines -- vllm`, or `python3`.
 */
import { execFileSync } from 'node:child_process';
import { readdir, readFile, readlink, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { headers } from '../../../spec/wire.ts';
import { pythonWith } from '../../engines/environments.ts';
import { writeTinyModel } from '../../engines/tiny-model.ts';
import { Site, unitOf } from '../support.ts';

const { found: python, lacking } = pythonWith(['torch', 'transformers', 'fastapi', 'uvicorn', 'requests']);

describe.skipIf(lacking !== '')(`transformers serve${lacking}`, () => {
  test('deployed, asked over the mesh with streaming, stopped', async () => {
    await using site = await Site.open();
    const folder = writeTinyModel(python!, join(site.folder, 'tiny'));
    const executable = execFileSync(python!, ['-c', 'import sys; print(sys.executable)']).toString().trim();
    const agent = await site.start(
      [
        unitOf(
          { name: 'org/tiny', precision: 'f32' },
          { engine: 'transformers', model_path: folder, unit: 'tiny-0' },
        ),
      ],
      // How a virtual environment is used: its folder comes first in PATH.
      { engine_prefix: ['/usr/bin/env', `PATH=${dirname(executable)}:${process.env.PATH}`] },
    );
    const record = await site.serving('org/tiny', 90_000);
    expect(record.metadata).toMatchObject({
      engine: 'transformers',
      engine_version: expect.stringMatching(/^\d/),
    });

    const pool = site.pool(record);
    const answer = await pool.request({
      method: 'POST',
      path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json', [headers.model]: 'org/tiny' },
      body: JSON.stringify({
        model: 'org/tiny',
        stream: true,
        max_tokens: 8,
        messages: [{ role: 'user', content: 'hello' }],
      }),
    });
    const text = await answer.body.text();
    expect([answer.statusCode, text.slice(0, 300)]).toEqual([200, expect.stringContaining('data: ')]);
    const chunks = text
      .split('\n')
      .filter((line) => line.startsWith('data: {'))
      .map((line) => JSON.parse(line.slice(6)));
    expect(chunks.length).toBeGreaterThan(1);
    expect(chunks[0].model).toMatch(/^org\/tiny/); // the served name, not a path of the node
    expect(chunks.at(-1).choices[0].finish_reason).toMatch(/length|stop/);

    // Nothing of it listens where others on the node could reach it.
    expect(await listeningPorts(await agent.pidOf(record))).toEqual([]);
    const [runtime] = await readdir(join(site.folder, 'run'));
    expect((await stat(join(site.folder, 'run', runtime!))).mode & 0o077).toBe(0);

    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
  }, 150_000);
});

/** TCP ports that a process listens on, from its descriptors and /proc/net/tcp. */
async function listeningPorts(pid: number): Promise<number[]> {
  const inodes = new Set<string>();
  for (const descriptor of await readdir(`/proc/${pid}/fd`)) {
    const match = /^socket:\[(\d+)\]$/.exec(await readlink(`/proc/${pid}/fd/${descriptor}`));
    if (match) inodes.add(match[1]!);
  }
  const table = `${await readFile(`/proc/${pid}/net/tcp`, 'utf8')}${await readFile(`/proc/${pid}/net/tcp6`, 'utf8')}`;
  return table
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === '0A' && inodes.has(fields[9] ?? ''))
    .map((fields) => Number.parseInt(fields[1]!.split(':').at(-1)!, 16));
}
