/** The job of keeper and gateway makes way for its successor: whatever Slurm answers, and however often it warns. */
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GatewayJob } from '../../../control/gateway/job.ts';
import { ColocatedGateway } from '../../../control/keeper/colocated-gateway.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { siteSchema } from '../../../spec/site.ts';
import type { JobInfo } from '../../../spec/slurm-types.ts';
import { temporaryStore } from '../support.ts';

const site = siteSchema.parse({
  name: 'local',
  kind: 'slurm',
  gateway: { place: 'job', partition: 'cpu' },
  keeper: { place: 'job' },
});

/** A queue in memory, as far as a gateway's job needs it. */
class Queue {
  readonly jobs = new Map<string, { name: string; phase: JobInfo['phase'] }>();
  readonly cancelled: string[] = [];
  /** Thrown by a submission: before the job is there, or after. */
  refuse: HpcserveError | undefined;
  lose: HpcserveError | undefined;
  submissions = 0;

  get client(): SlurmClient {
    const info = ([id, job]: [string, { name: string; phase: JobInfo['phase'] }]) =>
      ({ job_id: id, base_job_id: id, ...job }) as JobInfo;
    const client: Partial<SlurmClient> = {
      submit: async (script) => {
        this.submissions++;
        if (this.refuse) throw this.refuse;
        const text = readFileSync((script as { path: string }).path, 'utf8');
        const job_id = String(100 + this.jobs.size);
        this.jobs.set(job_id, { name: /--job-name=(\S+)/.exec(text)![1]!, phase: 'waiting' });
        if (this.lose) throw this.lose;
        return { job_id, warnings: [] };
      },
      jobs: async (ids) => [...this.jobs].filter(([id]) => ids.includes(id)).map(info),
      myJobs: async () => [...this.jobs].map(info),
      cancel: async (ids) => {
        this.cancelled.push(...ids);
        for (const id of ids) this.jobs.get(id)!.phase = 'ended';
      },
    };
    return client as SlurmClient;
  }
}

let place: ReturnType<typeof temporaryStore>;
let queue: Queue;
let interruption: AbortController;
let operations: Operations;
let events: ProgressEvent[];

beforeEach(() => {
  place = temporaryStore();
  mkdirSync(place.store.layout.gateway_folder, { recursive: true });
  queue = new Queue();
  interruption = new AbortController();
  events = [];
  operations = {
    ...openOperations({
      loaded: { site, path: '/site.yaml', provenance: () => undefined, layout: place.store.layout },
      facts: { user: 'someone', environment: { HOME: '/home/someone' } },
      command: 'test',
      now_ms: () => Date.now(),
      emit: () => undefined,
      signal: interruption.signal,
    }),
    slurm: queue.client,
  };
});
afterEach(() => {
  interruption.abort();
  place.dispose();
});

const refusal = new HpcserveError('E_SLURM_LIMIT', { what: 'too many jobs' });
const written = (): unknown =>
  JSON.parse(readFileSync(join(place.store.layout.gateway_folder, 'gateway-job.json'), 'utf8'));

/** The first job of the gateway, which runs. */
async function running(): Promise<string> {
  const refused = new GatewayJob(operations, queue.client);
  const starting = refused.start().catch(() => undefined);
  await expect.poll(() => queue.jobs.size).toBe(1);
  await expect.poll(written).toMatchObject({ job_id: '100' });
  queue.jobs.get('100')!.phase = 'running';
  // A command that waits for it has died.
  void starting;
  return '100';
}

describe('a gateway’s job that is renewed', () => {
  it('stays written down where its successor is refused', async () => {
    const job = await running();
    const before = written();
    queue.refuse = refusal;
    await expect(new GatewayJob(operations, queue.client).renew(job)).rejects.toThrow('too many jobs');
    expect(written()).toEqual(before);
    await new GatewayJob(operations, queue.client).stop();
    expect(queue.cancelled).toEqual([job]);
  });

  it.each([
    ['whose answer got lost', { may_have_been_submitted: true }],
    ['whose command died', undefined],
  ])('has one successor after a submission %s, and both are ended', async (_, details) => {
    const job = await running();
    // A command that dies writes nothing more down.
    const path = join(place.store.layout.gateway_folder, 'gateway-job.json');
    let inBetween = '';
    queue.lose = new HpcserveError('E_SLURM_UNREACHABLE', {
      what: 'no answer',
      ...(details ? { details } : {}),
    });
    const client = queue.client;
    const submit = client.submit.bind(client);
    client.submit = (...given) => {
      inBetween = readFileSync(path, 'utf8');
      return submit(...given);
    };
    await expect(new GatewayJob(operations, client).renew(job)).rejects.toThrow('no answer');
    writeFileSync(path, inBetween);
    expect(written()).toMatchObject({ job_id: job });
    queue.lose = undefined;
    expect(await new GatewayJob(operations, queue.client).renew(job)).toBe('101');
    expect(await new GatewayJob(operations, queue.client).renew(job)).toBe('101');
    expect(queue.jobs.size).toBe(2);
    await new GatewayJob(operations, queue.client).stop();
    expect(queue.cancelled.toSorted()).toEqual([job, '101']);
    expect(existsSync(path)).toBe(false);
  });
});

describe('the gateway beside the keeper', () => {
  const beside = (): ColocatedGateway =>
    new ColocatedGateway('/nowhere', interruption.signal, (event) => events.push(event), 50);

  it('has a successor as soon as one is taken, and one however often Slurm warns', async () => {
    const job = await running();
    queue.refuse = refusal;
    const gateway = beside();
    const renewed = gateway.renew(operations, job);
    const again = gateway.renew(operations, job);
    await expect.poll(() => queue.submissions).toBeGreaterThan(3);
    queue.refuse = undefined;
    await Promise.all([renewed, again]);
    await gateway.renew(operations, job);
    expect(queue.jobs.size).toBe(2);
    expect(events.map(({ kind }) => kind)).toEqual(['warning', 'submitted']);
  });

  it('is tried again where the lock of the gateway cannot be taken', async () => {
    const job = await running();
    const folder = place.store.layout.gateway_folder;
    const away = `${folder}.away`;
    renameSync(folder, away);
    const renewed = beside().renew(operations, job);
    await expect.poll(() => events.map(({ kind }) => kind)).toEqual(['warning']);
    renameSync(away, folder);
    await renewed;
    expect(written()).toMatchObject({ job_id: '101', predecessor_job_id: job });
  });

  it('tries no more when the job ends', async () => {
    const job = await running();
    queue.refuse = refusal;
    const renewed = beside().renew(operations, job);
    await expect.poll(() => events.length).toBe(1);
    interruption.abort();
    await renewed;
    const tried = queue.submissions;
    await delay(200);
    expect(queue.submissions).toBe(tried);
  });
});
