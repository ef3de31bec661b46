/** What the gateway tells Prometheus, judged by Prometheus' own programs. */
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { installPrograms } from '../cluster/install.ts';
import { freePort } from '../free-port.ts';
import { chatAnswer, chunkEvent, doneEvent, json, shareStage, stream, until, usageEvent } from './support.ts';

const prometheus = await installPrograms(['promtool', 'prometheus'], ['prometheus']);
const needed = prometheus.ready ? '' : ` [skipped: ${prometheus.missing}]`;
const path = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] };

describe.each([1, 2])('metrics of a gateway of %i', (processes) => {
  const shared = shareStage({}, { processes });

  async function metricsAfterRequests(): Promise<string> {
    await shared.session(json(chatAnswer), { node: 'node1' });
    const streaming = [chunkEvent('a'), chunkEvent('b', 'stop'), usageEvent, doneEvent];
    await shared.session(stream(streaming), { node: 'node "2"\\', name: 'org/other' });
    await (await shared.stage.post(path, chat)).text();
    await (await shared.stage.post(path, { ...chat, model: 'org/other', stream: true })).text();
    return (await shared.stage.admin('/metrics')).text();
  }

  it('are named as vLLM names them, by model and node', async () => {
    const text = await metricsAfterRequests();
    for (const name of [
      'num_requests_running',
      'num_requests_waiting',
      'kv_cache_tokens',
      'prompt_tokens_total',
      'generation_tokens_total',
      'request_success_total',
      'time_to_first_token_seconds_count',
      'request_time_per_output_token_seconds_count',
      'e2e_request_latency_seconds_count',
    ])
      expect(text, name).toMatch(new RegExp(`^hpcserve_${name}\\{model_name="tiny",.*node="node1"`, 'm'));
    expect(text).toMatch(/finished_reason="stop"\} 1$/m);
    expect(text).toContain('node="node \\"2\\"\\\\"');
  });

  it('are of all of its processes', async () => {
    const text = await metricsAfterRequests();
    expect(text).toMatch(new RegExp(`^hpcserve_gateway_relays ${processes}$`, 'm'));
    // Node alone takes 30 MB and more of each: those that relay, and the one beside them.
    const resident = /^hpcserve_gateway_process_resident_memory_bytes (\d+)$/m.exec(text)!;
    expect(Number(resident[1])).toBeGreaterThan((processes === 1 ? 1 : processes + 1) * 30e6);
    expect(text.match(/^hpcserve_gateway_process_start_time_seconds \d+/gm)).toHaveLength(1);
  });

  describe.skipIf(!prometheus.ready)(`Prometheus${needed}`, () => {
    it('finds nothing wrong with them', async () => {
      const { status, stderr, stdout } = spawnSync('promtool', ['check', 'metrics'], {
        input: await metricsAfterRequests(),
        encoding: 'utf8',
      });
      expect({ status, said: stdout + stderr }).toEqual({ status: 0, said: '' });
    });

    it('reads them from the gateway, with a token', async () => {
      await metricsAfterRequests();
      const folder = mkdtempSync(join(tmpdir(), 'hpcserve-prometheus-'));
      const port = await freePort();
      const { host } = new URL(shared.stage.url);
      writeFileSync(
        join(folder, 'prometheus.yml'),
        `scrape_configs:
  - job_name: hpcserve
    scrape_interval: 1s
    authorization: {credentials: ${shared.stage.gateway.admin_token}}
    static_configs: [{targets: ['${host}']}]
`,
        { mode: 0o600 },
      );
      const server = spawn(
        'prometheus',
        [
          `--config.file=${join(folder, 'prometheus.yml')}`,
          `--storage.tsdb.path=${join(folder, 'data')}`,
          `--web.listen-address=127.0.0.1:${port}`,
        ],
        { stdio: 'ignore' },
      );
      const ended = new Promise((resolve) => server.once('exit', resolve));
      try {
        const query = encodeURIComponent('sum(hpcserve_generation_tokens_total) by (model_name)');
        const ask = async (): Promise<unknown[]> => {
          try {
            const answer = await fetch(`http://127.0.0.1:${port}/api/v1/query?query=${query}`);
            return ((await answer.json()) as { data?: { result: unknown[] } }).data?.result ?? [];
          } catch {
            return []; // it does not listen yet
          }
        };
        await until(async () => (await ask()).length === 2, 'both models to be known to Prometheus', 30_000);
      } finally {
        server.kill();
        await ended;
        rmSync(folder, { recursive: true, force: true });
      }
    });
  });
});
