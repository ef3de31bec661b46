/** A request of a batch under which replicas end. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Answer, type Stage, startStage, type TestSession } from '../support.ts';
import { BatchClient } from './support.ts';

const dies: Answer = (_request, response) => void response.socket!.destroy();
const saysAlone: Answer = (_request, response) => {
  response.writeHead(502, { 'content-type': 'application/json', 'x-should-retry': 'false' });
  response.end(
    JSON.stringify({ error: { message: 'silent', type: 'server_error', code: 'E_REPLICA_SILENT' } }),
  );
};

let stage: Stage;
beforeEach(async () => {
  stage = await startStage();
});
afterEach(() => stage.close());

it.each([
  ['end', dies, 2],
  ['say that it was alone', saysAlone, 1],
])('is asked no more where replicas %s, and has its error in the file', async (_how, answer, asked) => {
  const replicas: TestSession[] = [];
  for (const node of ['node1', 'node2', 'node3'])
    replicas.push(await stage.session(answer, { node, metadata: { tier: 'scavenger' } }));
  const client = new BatchClient(stage.url, stage.key);
  const batch = await client.ended(await client.begin(1));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 0, failed: 1 } });
  expect(await client.lines(batch.error_file_id!)).toMatchObject([
    { custom_id: 'r0', response: { status_code: 502, body: { error: { code: 'E_REQUEST_STOPS_REPLICA' } } } },
  ]);
  expect(replicas.reduce((sum, { requests }) => sum + requests.length, 0)).toBe(asked);
});
