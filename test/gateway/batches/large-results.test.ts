/** Batches whose results are more than a process can hold at once, or more than their key may keep. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { isEnded, type KeptBatch } from '../../../gateway/batches/batch.ts';
import { Batches, type BatchesOptions } from '../../../gateway/batches/batches.ts';
import { FileStore } from '../../../gateway/batches/file-store.ts';
import { KeptForKeys } from '../../../gateway/kept/kept-for-keys.ts';
import { type ApiKey, KeyStore } from '../../../ledger/index.ts';
import { testConfig, until } from '../support.ts';
import { endpoint } from './support.ts';

const log = pino({ enabled: false });
setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

let root: string;
let keys: KeyStore;
let key: ApiKey;
let kept: KeptForKeys;
let batches: Batches;

beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-results-'));
  keys = await KeyStore.open(join(root, 'keys'));
  ({ key } = keys.create('tester', {}));
});
afterEach(async () => {
  await batches.close();
  await kept.close();
  keys.close();
  rmSync(root, { recursive: true });
});

function open(ask: BatchesOptions['ask'], kept_key_bytes_max = 2e9): FileStore {
  const config = testConfig(root, { kept_key_bytes_max });
  mkdirSync(config.gateway_folder, { recursive: true });
  kept = new KeptForKeys(config, log);
  batches = new Batches({ gateway_folder: config.gateway_folder, kept, keys, log, ask });
  return new FileStore(kept.files!, key.id);
}

async function begin(files: FileStore, requests: number): Promise<string> {
  const lines = Array.from({ length: requests }, (_, at) =>
    JSON.stringify({ custom_id: `r${at}`, method: 'POST', url: endpoint, body: { at } }),
  );
  const { id } = await files.put('in.jsonl', 'batch', [Buffer.from(lines.join('\n'))]);
  return (
    await batches.create(key, { endpoint, input_file_id: id, completion_window: '24h', metadata: null })
  ).id;
}

async function ended(id: string): Promise<KeptBatch> {
  await until(async () => isEnded(await batches.find(key, id)), 'the batch to end', 100_000);
  return batches.find(key, id);
}

it('of 300 MB are in no heap, and in their file in the order of the requests', async () => {
  const [requests, answer_bytes, bound_bytes] = [2000, 150_000, 100e6];
  collect();
  const before_bytes = process.memoryUsage().heapUsed;
  let most_bytes = 0;
  const look = (): void => {
    collect();
    most_bytes = Math.max(most_bytes, process.memoryUsage().heapUsed - before_bytes);
  };
  let asked = 0;
  const files = open(async (_key, _path, { body }) => {
    const { at } = JSON.parse(body.toString()) as { at: number };
    if (++asked % 100 === 0) look();
    // Every seventh comes late, and every hundredth fails.
    await wait(at % 7 === 0 ? 20 : 0);
    const text = String(at).padEnd(answer_bytes, 'x');
    return {
      status: at % 100 === 99 ? 400 : 200,
      headers: new Map(),
      body: Buffer.from(JSON.stringify({ text })),
    };
  });
  const id = await begin(files, requests);
  const looking = setInterval(look, 500);
  const batch = await ended(id).finally(() => clearInterval(looking));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1980, failed: 20 } });
  expect(most_bytes).toBeGreaterThan(0);
  expect(most_bytes).toBeLessThan(bound_bytes);
  const all = Array.from({ length: requests }, (_, at) => at);
  const output = await requestsIn(files, batch.output_file_id!, answer_bytes);
  expect(output).toEqual(all.filter((at) => at % 100 !== 99));
  expect(await requestsIn(files, batch.error_file_id!, answer_bytes)).toEqual(
    all.filter((at) => at % 100 === 99),
  );
  expect((await files.find(batch.output_file_id!)).bytes).toBeGreaterThan(1980 * answer_bytes);
  // Its parts are gone: they are in the files now.
  expect(readdirSync(join(root, 'batches', key.id))).toEqual([id]);
});

/** Which requests' answers are in a file, in its order; each whole. */
async function requestsIn(files: FileStore, id: string, answer_bytes: number): Promise<number[]> {
  const found: number[] = [];
  let rest = '';
  for await (const piece of await files.pieces(id)) {
    const lines = (rest + piece.toString()).split('\n');
    rest = lines.pop()!;
    for (const line of lines) {
      const { custom_id, response } = JSON.parse(line) as {
        custom_id: string;
        response: { body: { text: string } };
      };
      const at = Number(custom_id.slice(1));
      if (response.body.text !== String(at).padEnd(answer_bytes, 'x'))
        throw new Error(`${custom_id} is wrong`);
      found.push(at);
    }
  }
  expect(rest).toBe('');
  return found;
}

it('that pass what their key may keep end the batch, which says so', async () => {
  const bound_bytes = 1_000_000;
  let asked = 0;
  const files = open(async () => {
    asked++;
    return { status: 200, headers: new Map(), body: Buffer.alloc(10_000, 'x') };
  }, bound_bytes);
  const batch = await ended(await begin(files, 1000));
  expect(batch).toMatchObject({
    status: 'failed',
    output_file_id: null,
    errors: { data: [{ code: 'results_too_large', message: expect.stringContaining('0.001 GB') }] },
  });
  expect(asked).toBeLessThan(bound_bytes / 10_000 + 2 * 16);
  // Its end is said before its parts are removed.
  await until(() => partsOf().length === 0, 'parts of its results to be removed');
  expect(readdirSync(join(root, 'batches', key.id))).toEqual([batch.id]);
});

it('that were removed to make room for others end the batch, which says so', async () => {
  const requests = 200;
  let asked = 0;
  const files = open(async () => {
    // Those that were kept first are the oldest.
    if (++asked === requests) for (const part of partsOf()) rmSync(part);
    return { status: 200, headers: new Map(), body: Buffer.from('{}') };
  });
  const batch = await ended(await begin(files, requests));
  expect(batch).toMatchObject({ status: 'failed', errors: { data: [{ code: 'lost_results' }] } });
  expect(batch.output_file_id).toBeNull();
});

function partsOf(): string[] {
  const folder = join(root, 'batches', key.id);
  return readdirSync(folder)
    .filter((name) => name.startsWith('part-'))
    .map((name) => join(folder, name));
}
