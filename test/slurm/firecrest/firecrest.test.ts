/** What FirecREST's answers mean, from a server that says what a test tells it; jobs are in firecrest.e2e.test.ts. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { CheckResult } from '../../../cli/doctor/check.ts';
import { checkSlurm } from '../../../cli/doctor/site-checks.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { LoadedSite } from '../../../control/state/site-files.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { AccessTokens } from '../../../slurm/firecrest/access-token.ts';
import { FirecrestApi } from '../../../slurm/firecrest/api.ts';
import { FirecrestClient } from '../../../slurm/firecrest/client.ts';
import { siteSchema } from '../../../spec/site.ts';
import { type StateLayout, stateLayout } from '../../../spec/state-layout.ts';
import { temporaryStore } from '../../control/support.ts';

type Say = (response: ServerResponse, request: IncomingMessage) => void;

const json =
  (status: number, body: object): Say =>
  (response) =>
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
const refusal = (status: number, message: string, ...causedBy: string[]): Say =>
  json(status, { errorType: 'error', message, causedBy });

let server: Server;
let origin: string;
let client: FirecrestClient;
let token: Say;
let answer: Say;

beforeEach(async () => {
  token = json(200, { access_token: 'of-a-test', token_type: 'Bearer', expires_in: 300 });
  server = createServer((request, response) =>
    request
      .resume()
      .once('end', () => (request.url?.startsWith('/token') ? token : answer)(response, request)),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  client = new FirecrestClient(api(), 'here');
});
afterEach(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

function api(): FirecrestApi {
  const secret = { variable: 'SECRET', value: 'of-a-test' };
  const tokens = new AccessTokens({ token_url: `${origin}/token`, client_id: 'me', secret }, 5000);
  return new FirecrestApi({ url: origin, tokens, timeout_ms: 5000, requests_per_s: 1000 });
}
function loadedSite(layout: StateLayout): LoadedSite {
  const firecrest = {
    url: origin,
    system: 'here',
    token_url: `${origin}/token`,
    client_id: 'me',
    client_secret_env: 'SECRET',
    requests_per_s: 10,
  };
  const site = siteSchema.parse({ name: 'afar', kind: 'slurm', slurm: { firecrest } });
  return { site, path: '/site.yaml', layout, provenance: () => undefined };
}
const submit = (): Promise<unknown> =>
  client.submit({ text: '#!/bin/bash\n' }, [{ name: 'account', value: 'a', source: 'site.yaml:1:1' }]);
const sbatchSaid = (words: string): string =>
  `Unexpected Slurm command response. exit_status:1 std_err:${words}`;

describe('a submission', () => {
  it.each([
    [
      'sbatch waited in vain for the controller',
      refusal(
        500,
        sbatchSaid('sbatch: error: Batch job submission failed: Socket timed out on send/recv operation'),
      ),
      'E_SLURM_UNREACHABLE',
    ],
    [
      'sbatch printed no number that FirecREST knows',
      refusal(500, 'Unable to submit new job'),
      'E_SLURM_ANSWER',
    ],
    ['sbatch was ended before it said anything', refusal(500, sbatchSaid('')), 'E_SLURM_ANSWER'],
    [
      'FirecREST failed itself',
      refusal(500, 'An error occurred during the request process'),
      'E_SLURM_ANSWER',
    ],
    ['a proxy failed', (response: ServerResponse) => response.writeHead(520).end('<html>'), 'E_SLURM_ANSWER'],
  ])('may have become a job where %s', async (_, say, code) => {
    answer = say;
    await expect(submit()).rejects.toMatchObject({ code, details: { may_have_been_submitted: true } });
  });

  it.each([
    [
      500,
      sbatchSaid('sbatch: error: invalid account or account/partition combination specified'),
      'E_SLURM_ACCOUNT',
    ],
    [500, sbatchSaid('sbatch: error: the moon is not right'), 'E_SLURM_REFUSED'],
    [
      403,
      'Job submission rejected: accounting/QOS policy limit exceeded. QOSMaxSubmitJobPerUserLimit',
      'E_SLURM_LIMIT',
    ],
    [403, 'The scope firecrest is missing', 'E_FIRECREST_ACCESS'],
    [400, '1 validation error/s occurred', 'E_SLURM_REFUSED'],
  ])('is no job where it was refused: %i %s', async (status, message, code) => {
    answer = refusal(status, message);
    const error = await submit().catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code });
    expect(error).not.toHaveProperty('details.may_have_been_submitted');
  });
});

it.each([4711, '4711'])('a job number may be a number or text: %j', async (jobId) => {
  answer = json(201, { jobId });
  expect(await submit()).toMatchObject({ job_id: '4711' });
  const job = {
    jobId,
    name: 'j',
    status: { state: 'RUNNING' },
    time: {},
    nodes: 'n1',
    partition: 'p',
  };
  answer = json(200, { jobs: [job] });
  expect(await client.myJobs()).toMatchObject([{ job_id: '4711', base_job_id: '4711', phase: 'running' }]);
});

describe('jobs', () => {
  const job = { name: 'j', status: { state: 'RUNNING' }, time: {}, nodes: 'n[1-2]', partition: 'p' };
  const told = (jobs: object[]): void => {
    answer = json(200, { jobs: jobs.map((each, at) => ({ ...job, jobId: String(at + 1), ...each })) });
  };

  it.each(['EXPLODED', 'UNKNOWN', ''])('in a state that nobody knows have not ended: %j', async (state) => {
    told([{ status: { state }, time: { end: 1_790_000_000 } }, { status: { state: 'CANCELLED by 1000' } }]);
    const [unknown, cancelled] = await client.myJobs();
    expect(unknown).toMatchObject({ state: 'UNKNOWN', phase: 'unknown' });
    expect(unknown!.end_time_ms).toBeUndefined();
    expect(cancelled).toMatchObject({ state: 'CANCELLED', phase: 'ended' });
  });

  it('are known beside one whose nodes are of a form that nobody knows', async () => {
    told([{ nodes: 'n[1-' }, {}, { nodes: 'None assigned' }, { nodes: '' }]);
    expect((await client.myJobs()).map(({ nodes }) => nodes)).toEqual([[], ['n1', 'n2'], [], []]);
    const reservation = { name: 'r', startTime: 1, endTime: 2 };
    answer = json(200, {
      reservations: [
        { ...reservation, nodeList: 'n1]' },
        { ...reservation, nodeList: 'n7' },
      ],
    });
    expect((await client.reservations()).map(({ nodes }) => nodes)).toEqual([[], ['n7']]);
  });

  it('have limits in seconds, which are whole minutes', async () => {
    told([7200, 0, null, 90].map((limit) => ({ time: { limit } })));
    const limits = (await client.myJobs()).map(({ time_limit_s }) => time_limit_s);
    expect(limits).toEqual([7200, undefined, undefined, undefined]);
  });
});

describe('a question that fails', () => {
  it.each([
    [500, 'An error occurred during the request process', 'E_SLURM_ANSWER'],
    [
      500,
      'Unexpected Slurm command response. exit_status:1 std_err:sacct: error: the moon is not right',
      'E_SLURM_ANSWER',
    ],
    [404, 'No nodes found', 'E_SLURM_ANSWER'],
    [403, 'The scope firecrest is missing', 'E_FIRECREST_ACCESS'],
    [
      500,
      'Unexpected Slurm command response. exit_status:1 std_err:slurm_load_jobs error: Unable to contact slurm controller',
      'E_SLURM_UNREACHABLE',
    ],
  ])('refuses no job: %i %s', async (status, message, code) => {
    answer = refusal(status, message);
    for (const ask of [() => client.myJobs(), () => client.nodeGroups(), () => client.partitions()])
      await expect(ask()).rejects.toMatchObject({ code });
  });

  it('says what it was about, with all that FirecREST says', async () => {
    answer = refusal(500, 'Error executing Slurm command.', 'the moon is not right');
    const because = ['it answered 500: Error executing Slurm command.\nthe moon is not right'];
    await expect(client.nodeGroups()).rejects.toMatchObject({
      message: 'FirecREST has no answer about /status/here/nodes',
      because,
    });
    await expect(client.cancel(['7'])).rejects.toMatchObject({
      message: 'FirecREST has no answer about the end of job 7',
      because,
    });
  });
});

describe('a service that is away', () => {
  it.each([408, 429, 500, 503])(
    'is not a refused client, where the provider of tokens answers %i',
    async (status) => {
      token = json(status, { error: 'temporarily_unavailable' });
      await expect(client.myJobs()).rejects.toMatchObject({
        code: 'E_SLURM_UNREACHABLE',
        because: [`it answered ${status} temporarily_unavailable`],
        details: { retryable: true },
      });
      token = json(400, { error: 'unauthorized_client' });
      await expect(client.myJobs()).rejects.toMatchObject({ code: 'E_FIRECREST_ACCESS' });
    },
  );

  it('is not of another form, where its answer breaks off', async () => {
    const half: Say = (response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': 500 });
      response.write('{"jobs": [', () => response.socket?.destroy());
    };
    answer = half;
    await expect(client.myJobs()).rejects.toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
      details: { retryable: true },
    });
    await expect(submit()).rejects.toMatchObject({
      code: 'E_SLURM_ANSWER',
      details: { may_have_been_submitted: true },
    });
    token = half;
    await expect(new FirecrestClient(api(), 'here').myJobs()).rejects.toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
    });
  });
});

it('what doctor writes to a folder that is not shared is taken back there', async () => {
  const place = temporaryStore();
  const files = new Set<string>();
  let mayRemove = true;
  const tells: Record<string, object> = {
    systems: { systems: [{ name: 'here', scheduler: { type: 'slurm', version: '25.05.1' } }] },
    userinfo: { accounts: [] },
    reservations: { reservations: [] },
  };
  answer = (response, request) => {
    const { pathname, searchParams } = new URL(request.url!, origin);
    const path = searchParams.get('path') ?? '';
    const what = pathname.split('/').at(-1)!;
    if (what === 'upload') files.add(path);
    else if (what === 'download') return response.end('of a test');
    else if (what !== 'rm') return json(200, tells[what]!)(response, request);
    else if (!mayRemove) return refusal(403, 'rm: Permission denied')(response, request);
    else if (request.method === 'DELETE') files.delete(dirname(path));
    response.writeHead(204).end();
  };
  const operations = {
    loaded: loadedSite(place.store.layout),
    store: place.store,
    slurm: client,
    facts: { user: 'someone', environment: {} },
    now_ms: Date.now,
  } as unknown as Operations;
  const state = async (): Promise<CheckResult | undefined> =>
    (await checkSlurm(operations)).find(({ check }) => check === 'state folder');
  const notSeen = `what FirecREST writes to ${place.store.layout.root} is not seen here`;
  try {
    expect(await state()).toMatchObject({ status: 'FAILED', found: notSeen });
    expect([...files]).toEqual([]);
    mayRemove = false;
    const said = (await state())!.found.replace(/doctor-[0-9a-f]+/, 'doctor-X');
    expect(said).toBe(
      `${notSeen}; ${place.store.layout.root}/.doctor-X stays on the cluster: FirecREST answered 403: rm: Permission denied`,
    );
  } finally {
    place.dispose();
  }
});

it('is asked no faster by several who work in one process', async () => {
  answer = json(200, { jobs: [] });
  const open = (): SlurmClient =>
    openOperations({
      loaded: loadedSite(stateLayout('/nowhere', 'afar')),
      facts: { user: 'someone', environment: { SECRET: 'of-a-test' } },
      command: 'test',
      now_ms: Date.now,
      emit: () => {},
      signal: new AbortController().signal,
    }).slurm!;
  const from_ms = performance.now();
  await Promise.all([open(), open(), open()].flatMap((each) => [each.myJobs(), each.myJobs()]));
  // Six requests are five pauses; timers may be a little early.
  expect(performance.now() - from_ms).toBeGreaterThan(450);
});
