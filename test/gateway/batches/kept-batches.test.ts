/** What is kept of batches: for as long as they run, and whatever else lies beside it. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { isEnded, type KeptBatch } from '../../../gateway/batches/batch.ts';
import { Batches, type BatchesOptions } from '../../../gateway/batches/batches.ts';
import { FileStore } from '../../../gateway/batches/file-store.ts';
import { lockGatewayFolder } from '../../../gateway/gateway-lock.ts';
import { KeptForKeys } from '../../../gateway/kept/kept-for-keys.ts';
import { type ApiKey, KeyStore } from '../../../ledger/index.ts';
import { testConfig, until } from '../support.ts';
import { endpoint } from './support.ts';

const logged: string[] = [];
const log = pino({}, { write: (line: string) => void logged.push(line) });
const answered = { status: 200, headers: new Map(), body: Buffer.from('{}') };
const kept_s = 8;
/** Longer than a record takes to be written on a machine that is busy. */
const claim_ms = 1000;

let root: string;
let keys: KeyStore;
let key: ApiKey;
let kept: KeptForKeys;
let batches: Batches;

beforeEach(async () => {
  logged.length = 0;
  root = mkdtempSync(join(tmpdir(), 'hpcserve-kept-batches-'));
  keys = await KeyStore.open(join(root, 'keys'));
  ({ key } = keys.create('tester', {}));
});
afterEach(async () => {
  await close();
  keys.close();
  rmSync(root, { recursive: true });
});

function open(
  ask: BatchesOptions['ask'],
  files_kept_s?: number,
  running_max?: number,
  gateway = 'gateway',
): FileStore {
  const config = testConfig(root, { gateway_folder: join(root, gateway) });
  if (files_kept_s !== undefined) config.files_kept_s = files_kept_s;
  mkdirSync(config.gateway_folder, { recursive: true });
  kept = new KeptForKeys(config, log);
  const { gateway_folder } = config;
  const options: BatchesOptions = { gateway_folder, kept, keys, log, ask, claim_ms };
  if (running_max !== undefined) options.running_max = running_max;
  batches = new Batches(options);
  return new FileStore(kept.files!, key.id);
}

async function close(): Promise<void> {
  await batches.close();
  await kept.close();
}

async function begin(files: FileStore, requests: number, of = key): Promise<string> {
  const lines = Array.from({ length: requests }, (_, at) =>
    JSON.stringify({ custom_id: `r${at}`, method: 'POST', url: endpoint, body: { at } }),
  );
  const { id } = await files.put('in.jsonl', 'batch', [Buffer.from(lines.join('\n'))]);
  const asked = { endpoint, input_file_id: id, completion_window: '24h', metadata: null } as const;
  return (await batches.create(of, asked)).id;
}

async function ended(id: string, of = key): Promise<KeptBatch> {
  await until(async () => isEnded(await batches.find(of, id)), 'the batch to end');
  return batches.find(of, id);
}

function partsOf(): string[] {
  const folder = join(root, 'batches', key.id);
  return readdirSync(folder)
    .filter((name) => name.startsWith('part-'))
    .map((name) => join(folder, name));
}

it('parts of results are not over their time while their batch runs', async () => {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const requests = 100;
  const files = open(async (_key, _path, { body, signal }) => {
    const isLast = (JSON.parse(body.toString()) as { at: number }).at === requests - 1;
    if (isLast)
      await Promise.race([released, new Promise((resolve) => signal.addEventListener('abort', resolve))]);
    return answered;
  }, kept_s);
  const id = await begin(files, requests);
  await until(() => partsOf().length > 0, 'results to be kept');
  // Not over their time yet, and soon: as of a batch that runs for long.
  const [part] = partsOf();
  const old_s = Date.now() / 1000 - kept_s + 4;
  utimesSync(part!, old_s, old_s);
  await until(() => statSync(part!).mtimeMs > 1000 * (old_s + 2), 'the part to be renewed', 8000);
  await kept.batches!.sweep(1000 * (old_s + kept_s + 1));
  release();
  const batch = await ended(id);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: requests } });
}, 30_000);

it('the requests of a batch are not over their time while it waits for others', async () => {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const files = open(
    async (_key, _path, { signal }) => {
      await Promise.race([released, new Promise((resolve) => signal.addEventListener('abort', resolve))]);
      return answered;
    },
    kept_s,
    1,
  );
  const [first, second] = [await begin(files, 1), await begin(files, 1)];
  const { input_file_id } = await batches.find(key, second);
  const paths = [input_file_id, input_file_id.replace('file-', 'info-')].map((id) =>
    join(root, 'files', key.id, id),
  );
  const old_s = Date.now() / 1000 - kept_s + 4;
  for (const path of paths) utimesSync(path, old_s, old_s);
  const isRenewed = (): boolean => paths.every((path) => statSync(path).mtimeMs > 1000 * (old_s + 2));
  await until(isRenewed, 'the file to be renewed', 8000);
  expect((await batches.find(key, second)).status).toBe('validating');
  await kept.files!.sweep(1000 * (old_s + kept_s + 1));
  release();
  for (const id of [first, second]) expect((await ended(id)).status).toBe('completed');
}, 30_000);

it('a record that cannot be read keeps no other batch from going on', async () => {
  const { key: other } = keys.create('other', {});
  const { key: third } = keys.create('third', {});
  const hung = (_key: ApiKey, _path: string, { signal }: { signal: AbortSignal }): Promise<undefined> =>
    new Promise((resolve) => signal.addEventListener('abort', () => resolve(undefined)));
  open(hung);
  const begun: [string, ApiKey][] = [];
  for (const of of [key, other]) begun.push([await begin(new FileStore(kept.files!, of.id), 1, of), of]);
  // What a later version may have written, and what is no folder.
  await kept.batches!.put(key.id, `batch_${'0'.repeat(32)}`, Buffer.from('{"id":7}'));
  await kept.batches!.put(key.id, `batch_${'1'.repeat(32)}`, Buffer.from('no JSON'));
  writeFileSync(join(root, 'batches', third.id), '');
  await close();
  open(async () => answered);
  void batches.resume();
  for (const [id, of] of begun) expect((await ended(id, of)).status).toBe('completed');
  expect((await batches.list(key)).map(({ id }) => id)).toEqual([begun[0]![0]]);
  await until(() => logged.filter((line) => line.includes('cannot be read')).length >= 3, 'it to be said');
});

it('a batch that has ended does not run again because its parts cannot be removed', async () => {
  let asked = 0;
  const files = open(async () => {
    asked++;
    return answered;
  });
  kept.batches!.remove = () => Promise.reject(Object.assign(new Error('i/o error'), { code: 'EIO' }));
  const requests = 3;
  const id = await begin(files, requests);
  expect((await ended(id)).status).toBe('completed');
  const said = (words: string): number => logged.filter((line) => line.includes(words)).length;
  // Its mark that it is to end, and its parts.
  await until(() => said('what is left of a batch cannot be removed') === 2, 'it to be said');
  await close();
  expect([asked, said('a batch stopped')]).toEqual([requests, 0]);
  expect(partsOf()).not.toEqual([]);
});

describe('a batch of a gateway that is gone', () => {
  /** One of two requests was answered when its gateway ended. */
  async function left(change: Partial<KeptBatch> = {}): Promise<string> {
    let asked = 0;
    const files = open(
      async (_key, _path, { signal }) => {
        if (asked++ === 0) return answered;
        return new Promise((resolve) => signal.addEventListener('abort', () => resolve(undefined)));
      },
      undefined,
      undefined,
      'gateway-2',
    );
    const id = await begin(files, 2);
    await until(() => asked === 2, 'both to be asked');
    await close();
    const written = JSON.parse((await kept.batches!.get(key.id, id))!.toString()) as KeptBatch;
    expect(written).toMatchObject({ status: 'in_progress', gateway: 'gateway-2' });
    await kept.batches!.put(key.id, id, Buffer.from(JSON.stringify({ ...written, ...change })));
    open(async () => expect.unreachable());
    return id;
  }

  async function expectEnd(id: string, status: KeptBatch['status']): Promise<void> {
    const batch = await ended(id);
    expect(batch).toMatchObject({ status, request_counts: { total: 2, completed: 1, failed: 0 } });
    const content = await new FileStore(kept.files!, key.id).content(batch.output_file_id!);
    expect(content.toString()).toContain('"custom_id":"r0"');
    const isOfIt = (path: string): boolean => path.includes(id.replace('batch_', ''));
    await until(() => !partsOf().some(isOfIt), 'its parts to be removed');
  }

  it('is ended by the one that is told to cancel it, with what there is', async () => {
    const id = await left();
    expect((await batches.cancel(key, id)).status).toBe('cancelling');
    await expectEnd(id, 'cancelled');
  });

  it('is ended by any other when its window is over, and not before', async () => {
    const id = await left();
    await batches.endLeft();
    expect((await batches.find(key, id)).gateway).toBe('gateway-2');
    await close();
    const expired = await left({ expires_at: 1 });
    await batches.endLeft();
    await expectEnd(expired, 'expired');
    expect((await batches.find(key, id)).status).toBe('in_progress');
  });

  it('is left to its gateway where that runs', async () => {
    const id = await left({ expires_at: 1 });
    const lock = await lockGatewayFolder(join(root, 'gateway-2'), () => undefined);
    try {
      await batches.endLeft();
      expect(await batches.find(key, id)).toMatchObject({ status: 'in_progress', gateway: 'gateway-2' });
    } finally {
      lock.release();
    }
    await batches.endLeft();
    await expectEnd(id, 'expired');
  });

  it('is ended by one of several that look at once', async () => {
    const id = await left({ expires_at: 1 });
    const first = batches;
    const firstKept = kept;
    open(async () => expect.unreachable(), undefined, undefined, 'gateway-3');
    await Promise.all([first.endLeft(), batches.endLeft()]);
    await expectEnd(id, 'expired');
    const said = logged.filter((line) => line.includes('whose gateway is gone'));
    expect(said).toHaveLength(1);
    await first.close();
    await firstKept.close();
  });
});
