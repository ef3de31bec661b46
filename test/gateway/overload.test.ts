/** More than the replicas can compute: who is refused, when, and when to come back. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SiteWorkload } from '../../spec/workload.ts';
import { chatAnswer, type Stage, startStage, type TestSession, until, writeDeployment } from './support.ts';

const path = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'x' }] };
const places = 2;
/** All forty have come before one is answered, on a machine that is busy, too. */
const answer_ms = 400;
/** 1.6 s of waiting at 2 places of 0.4 s each: 8 may wait. */
const wait_max_s = 1.6;

let stage: Stage;
let replica: TestSession;
/** The replica never has more than it computes and than may wait, however old what it says of itself is. */
const most_allowed = places + (wait_max_s * 1000 * places) / answer_ms;
const queue: (() => void)[] = [];
let longest_ms = 0;
let running = 0;
let most = 0;
let asked = 0;

/** Computes two requests at a time, as an engine does that queues the others, and says so in its heartbeats. */
async function compute(): Promise<void> {
  asked++;
  most = Math.max(most, running + queue.length + 1);
  if (running >= places) await new Promise<void>((resolve) => queue.push(resolve));
  running++;
  report();
  const began_ms = performance.now();
  await delay(answer_ms);
  longest_ms = Math.max(longest_ms, performance.now() - began_ms);
  running--;
  queue.shift()?.();
  report();
}

function report(): void {
  replica.load = { running, waiting: queue.length, max_sequences: places };
}

beforeAll(async () => {
  stage = await startStage({}, { wait_max_s });
  replica = await stage.session(async (_request, response) => {
    await compute();
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(chatAnswer));
  });
  report();
  replica.beat();
});
afterAll(() => stage.close());

describe('under overload', () => {
  it('who would wait too long is refused at once, and everybody is served who comes back when told', async () => {
    // How long an answer takes must have been seen before a wait can be foretold.
    for (let count = 0; count < 3; count++) expect((await stage.post(path, chat)).status).toBe(200);
    let refused = 0;
    let answered = 0;
    const client = async (): Promise<void> => {
      for (;;) {
        const answer = await stage.post(path, chat);
        await answer.text();
        if (answer.status === 200) {
          answered++;
          return;
        }
        expect(answer.status).toBe(429);
        expect(answer.headers.get('x-hpcserve-error')).toBe('E_REPLICA_BUSY');
        refused++;
        const retry_s = Number(answer.headers.get('retry-after'));
        expect(retry_s).toBeGreaterThanOrEqual(1);
        // Until all are answered that can be there before it, at the pace of this machine.
        expect(retry_s).toBeLessThanOrEqual(
          Math.ceil(((most_allowed - places) * longest_ms) / places / 1000),
        );
        await delay(retry_s * 1000);
      }
    };
    await Promise.all(Array.from({ length: 40 }, client));
    expect(answered).toBe(40);
    expect(most).toBeLessThanOrEqual(most_allowed);
    expect(refused).toBeGreaterThanOrEqual(40 - most_allowed);
    // At once means without a word from the replica: it saw only those that it answered.
    expect(asked).toBe(3 + 40);
  }, 30_000);

  it('shows in the load that is measured', async () => {
    const { workload } = (await (await stage.admin('/mesh/table')).json()) as { workload: SiteWorkload[] };
    const measured = workload.find(({ model }) => model === 'tiny')!;
    expect(measured.requests).toBe(43);
    expect(measured.refused_per_s).toBeGreaterThan(0);
    expect(measured.refused_per_s).toBeLessThan(measured.rate_per_s);
  });

  it('one answer may be waited for, however long answers take', async () => {
    replica.load = { running: places, waiting: 1, max_sequences: places };
    replica.beat();
    await until(async () => {
      const { sessions } = (await (await stage.admin('/mesh/table')).json()) as {
        sessions: { models: { waiting: number }[] }[];
      };
      return sessions[0]!.models[0]!.waiting === 1;
    }, 'the load to be known');
    expect((await stage.post(path, chat)).status).toBe(200);
  });
});

describe('a model whose only job is pending', () => {
  it('is refused with since when, until when, and counted as asked for', async () => {
    const estimated_start_ms = Date.now() + 1800_000;
    writeDeployment(stage.config, 'queued', {
      spec: { models: [{ name: 'awaited', aliases: [] }] },
      launches: [
        {
          phase: 'submitted',
          job_id: '7',
          submitting_since_ms: Date.now() - 60_000,
          last: {
            phase: 'pending',
            state: 'PENDING',
            pending: { reason: 'Resources', explanation: 'its nodes are busy' },
            estimated_start_ms,
          },
        },
      ],
    });
    const answer = await stage.post(path, { ...chat, model: 'awaited' });
    expect(answer.status).toBe(503);
    const retry_s = Number(answer.headers.get('retry-after'));
    expect(Math.abs(retry_s - 1800)).toBeLessThan(30);
    const { error } = (await answer.json()) as { error: { message: string } };
    expect(error.message).toMatch(
      /job 7 of deployment queued is pending since \S+Z, expected at \S+Z: its nodes are busy/,
    );
    const metrics = await (await stage.admin('/metrics')).text();
    expect(metrics).not.toContain('model="awaited",kind="arrived"');
  });
});
