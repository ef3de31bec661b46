/** What the dashboard for Grafana asks for is told by a gateway, and Prometheus answers each of its questions. */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { packageRoot } from '../../host/package-root.ts';
import { installPrograms } from '../cluster/install.ts';
import { freePort } from '../free-port.ts';
import { chatAnswer, chunkEvent, doneEvent, json, shareStage, stream, until, usageEvent } from './support.ts';

const shared = shareStage();
const prometheus = await installPrograms(['prometheus'], ['prometheus']);
const needed = prometheus.ready ? '' : ` [skipped: ${prometheus.missing}]`;

const dashboard = z
  .object({
    panels: z.array(
      z.object({ title: z.string(), targets: z.array(z.object({ expr: z.string() })).default([]) }),
    ),
  })
  .parse(JSON.parse(readFileSync(join(packageRoot, 'examples/grafana.json'), 'utf8')));
/** As Grafana sends them, with its variables filled in. */
const questions = dashboard.panels.flatMap(({ title, targets }) =>
  targets.map(({ expr }) => ({
    title,
    expr: expr.replaceAll('$__rate_interval', '10s').replaceAll('$model', '.*'),
  })),
);

async function someRequests(): Promise<void> {
  const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] };
  await (await shared.stage.post('/v1/chat/completions', chat)).text();
  await (await shared.stage.post('/v1/chat/completions', { ...chat, model: 'other', stream: true })).text();
}

async function twoReplicas(): Promise<void> {
  await shared.session(json(chatAnswer));
  const pieces = [chunkEvent('a'), chunkEvent('b', 'stop'), usageEvent, doneEvent];
  await shared.session(stream(pieces), { node: 'node2', name: 'other' });
  await someRequests();
}

it('names no metric and no label that a gateway does not tell', async () => {
  await twoReplicas();
  const told = await (await shared.stage.admin('/metrics')).text();
  expect(questions.length).toBeGreaterThan(8);
  for (const { title, expr } of questions) {
    for (const [name] of expr.matchAll(/\bhpcserve_[a-z0-9_]+/g))
      expect(told, `${title}: ${name}`).toMatch(new RegExp(`^${name}[{ ]`, 'm'));
    for (const [, labels] of expr.matchAll(/\bby \(([^)]*)\)/g))
      for (const label of labels!.split(',').map((word) => word.trim()))
        expect(told, `${title}: ${label}`).toMatch(new RegExp(`^hpcserve_.*[{,]${label}="`, 'm'));
  }
});

describe.skipIf(!prometheus.ready)(`Prometheus${needed}`, () => {
  it('has an answer to every question of every panel', async () => {
    await twoReplicas();
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-grafana-'));
    const port = await freePort();
    writeFileSync(
      join(folder, 'prometheus.yml'),
      JSON.stringify({
        scrape_configs: [
          {
            job_name: 'hpcserve',
            scrape_interval: '1s',
            authorization: { credentials: shared.stage.gateway.admin_token },
            static_configs: [{ targets: [new URL(shared.stage.url).host] }],
          },
        ],
      }),
      { mode: 0o600 },
    );
    const argv = [
      `--config.file=${join(folder, 'prometheus.yml')}`,
      `--storage.tsdb.path=${join(folder, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
    ];
    const server = spawn('prometheus', argv, { stdio: 'ignore' });
    const ended = new Promise((resolve) => server.once('exit', resolve));
    const isAnswered = async (expr: string): Promise<boolean> => {
      // A rate needs requests between two readings.
      await someRequests();
      const query = `http://127.0.0.1:${port}/api/v1/query?query=${encodeURIComponent(expr)}`;
      const answer = await fetch(query).catch(() => undefined);
      // It does not listen yet, or listens and still reads its database.
      if (!answer || answer.status === 503) return false;
      const { status, error, data } = (await answer.json()) as {
        status: string;
        error?: string;
        data?: { result: { value: [number, string] }[] };
      };
      expect([expr, status, error]).toEqual([expr, 'success', undefined]);
      return data!.result.some(({ value: [, number] }) => number !== 'NaN');
    };
    try {
      for (const { title, expr } of questions)
        await until(() => isAnswered(expr), `an answer for ${title}: ${expr}`, 30_000);
    } finally {
      server.kill();
      await ended;
      rmSync(folder, { recursive: true, force: true });
    }
  }, 120_000);
});
