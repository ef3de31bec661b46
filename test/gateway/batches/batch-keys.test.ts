/** Keys that are revoked, blocked, narrowed or limited while a batch of theirs runs. */
import { setTimeout as wait } from 'node:timers/promises';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startGateway } from '../../../gateway/gateway.ts';
import {
  type Answer,
  chatAnswer,
  json,
  type Stage,
  startStage,
  type TestSession,
  until,
} from '../support.ts';
import { BatchClient, endpoint } from './support.ts';

const requests = 200;
const slow: Answer = async (request, response) => {
  await wait(50);
  await json(chatAnswer)(request, response);
};

let stage: Stage;
let replica: TestSession;
beforeEach(async () => {
  stage = await startStage();
  replica = await stage.session(slow, { metadata: { tier: 'scavenger' } });
});
afterEach(() => stage.close());

async function derivedFrom(parent: string): Promise<string> {
  const answer = await fetch(`${stage.url}/hpcserve/v1/keys`, {
    method: 'POST',
    headers: { authorization: `Bearer ${parent}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'derived' }),
  });
  return ((await answer.json()) as { key: string }).key;
}

function ask(url: string, key: string): Promise<Response> {
  return fetch(url + endpoint, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'tiny', messages: [] }),
  });
}

async function gatewayAgain(): Promise<{ url: string } & AsyncDisposable> {
  const { endpoint: at, close } = await startGateway(stage.config, {
    log: pino({ enabled: false }),
    times: { poll_ms: 50, drain_ms: 2000, limits_ms: 50 },
  });
  return { url: at.url, [Symbol.asyncDispose]: close };
}

/** What its replica has been asked once what was on its way has come. */
async function settledRequests(): Promise<number> {
  await wait(200);
  return replica.requests.length;
}

const begun = (): Promise<void> => until(() => replica.requests.length > 20, 'the batch to run');

describe('a batch whose key', () => {
  it('is revoked asks its replica nothing more', async () => {
    const { id, key } = await stage.newKey({});
    await new BatchClient(stage.url, key).begin(requests);
    await begun();
    await stage.admin(`/hpcserve/v1/keys/${id}`, { method: 'DELETE' });
    const asked = await settledRequests();
    await wait(1000);
    expect(replica.requests.length).toBe(asked);
    expect(asked).toBeLessThan(requests);
  });

  it('is blocked fails, says why, and has what there was', async () => {
    const { id, key } = await stage.newKey({});
    const client = new BatchClient(stage.url, key);
    const batch_id = await client.begin(requests);
    await begun();
    await stage.admin(`/hpcserve/v1/keys/${id}/block`, { method: 'POST' });
    const asked = await settledRequests();
    await wait(1000);
    await stage.admin(`/hpcserve/v1/keys/${id}/unblock`, { method: 'POST' });
    const batch = await client.ended(batch_id);
    expect(batch).toMatchObject({ status: 'failed', errors: { data: [{ code: 'invalid_key' }] } });
    expect(batch.failed_at).toEqual(expect.any(Number));
    expect((await client.lines(batch.output_file_id!)).length).toBe(batch.request_counts.completed);
    expect(replica.requests.length).toBe(asked);
  });

  it('may not be used for the model any more has the rest refused', async () => {
    const { id, key } = await stage.newKey({});
    const client = new BatchClient(stage.url, key);
    const batch_id = await client.begin(requests);
    await begun();
    const body = { models: ['other'] };
    await stage.admin(`/hpcserve/v1/keys/${id}`, { method: 'PATCH', body });
    const batch = await client.ended(batch_id);
    expect(batch.status).toBe('completed');
    expect(batch.request_counts.failed).toBeGreaterThan(0);
    const refused = await client.lines(batch.error_file_id!);
    expect(new Set(refused.map(({ response }) => response.status_code))).toEqual(new Set([403]));
  });

  it('has its input deleted fails when it is to go on', async () => {
    const client = new BatchClient(stage.url, stage.key);
    const batch_id = await client.begin(requests);
    await begun();
    await client.removeFile((await client.batch(batch_id)).input_file_id);
    await stage.gateway.close();
    await using again = await gatewayAgain();
    const batch = await new BatchClient(again.url, stage.key).ended(batch_id);
    expect(batch).toMatchObject({ status: 'failed', errors: { data: [{ code: 'missing_file' }] } });
  });
});

describe('a derived key', () => {
  it('is told what is left of the limits of its parent', async () => {
    const { key } = await stage.newKey({ requests_per_minute: 100, tokens_per_minute: 10_000 });
    const derived = await derivedFrom(key);
    const fieldsOf = async (one: string): Promise<(string | null)[]> => {
      const { headers } = await ask(stage.url, one);
      return ['requests', 'tokens'].map((of) => headers.get(`x-ratelimit-remaining-${of}`));
    };
    await stage.session(json(chatAnswer));
    const first = await fieldsOf(key);
    const second = await fieldsOf(derived);
    expect(first[0]).toBe('99');
    expect(second[0]).toBe('98');
    expect(Number(second[1])).toBeLessThan(Number(first[1]) + 1);
  });

  it('has the limits of its parent also for a batch that goes on after a restart', async () => {
    const { key } = await stage.newKey({ requests_per_minute: 5 });
    const derived = await derivedFrom(key);
    const batch_id = await new BatchClient(stage.url, derived).begin(60);
    await until(() => replica.requests.length >= 5, 'the batch to run');
    await stage.gateway.close();
    await using again = await gatewayAgain();
    await until(() => replica.requests.length > 5, 'the batch to go on');
    await wait(3000);
    // Two gateways one after the other let in five each, and the minute may have turned once.
    expect(replica.requests.length).toBeLessThanOrEqual(15);
    expect((await ask(again.url, key)).status).toBe(429);
    expect((await new BatchClient(again.url, derived).batch(batch_id)).status).toBe('in_progress');
  });
});
