/** What is kept of batches: for as long as they run, and whatever else lies beside it. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { isEnded, type KeptBatch } from '../../../gateway/batches/batch.ts';
import { Batches, type BatchesOptions } from '../../../gateway/batches/batches.ts';
import { FileStore } from '../../../gateway/batches/file-store.ts';
import { KeptForKeys } from '../../../gateway/kept/kept-for-keys.ts';
import { type ApiKey, KeyStore } from '../../../ledger/index.ts';
import { testConfig, until } from '../support.ts';
import { endpoint } from './support.ts';

const logged: string[] = [];
const log = pino({}, { write: (line: string) => void logged.push(line) });
const answered = { status: 200, headers: new Map(), body: Buffer.from('{}') };
const kept_s = 8;

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

function open(ask: BatchesOptions['ask'], files_kept_s?: number, running_max?: number): FileStore {
  const config = testConfig(root, files_kept_s === undefined ? {} : { files_kept_s });
  mkdirSync(config.gateway_folder, { recursive: true });
  kept = new KeptForKeys(config, log);
  const options: BatchesOptions = { gateway_folder: config.gateway_folder, kept, keys, log, ask };
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
