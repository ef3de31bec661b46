/** Whose batch is next, and how many one key may have. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Batches } from '../../../gateway/batches/batches.ts';
import { FileStore } from '../../../gateway/batches/file-store.ts';
import { KeptForKeys } from '../../../gateway/kept/kept-for-keys.ts';
import { type ApiKey, KeyStore } from '../../../ledger/index.ts';
import { testConfig, until } from '../support.ts';
import { endpoint } from './support.ts';

const log = pino({ enabled: false });
const open_max = 6;
let root: string;
let keys: KeyStore;
let kept: KeptForKeys;
let batches: Batches;
/** Names of batches in the order in which they were first asked. */
let begun: string[];
/** Lets the request that is asked be answered. */
let answer: () => void;

beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-lanes-'));
  keys = await KeyStore.open(join(root, 'keys'));
  const config = testConfig(root);
  mkdirSync(config.gateway_folder, { recursive: true });
  kept = new KeptForKeys(config, log);
  begun = [];
  batches = new Batches({
    gateway_folder: config.gateway_folder,
    kept,
    keys,
    log,
    running_max: 1,
    open_max,
    look_waiting_ms: 50,
    ask: async (_key, _path, { body, signal }) => {
      begun.push((JSON.parse(body.toString()) as { name: string }).name);
      await new Promise<void>((resolve) => {
        answer = resolve;
        signal.addEventListener('abort', () => resolve());
      });
      return signal.aborted ? undefined : { status: 200, headers: new Map(), body: Buffer.from('{}') };
    },
  });
});
afterEach(async () => {
  await batches.close();
  await kept.close();
  keys.close();
  rmSync(root, { recursive: true });
});

/** A batch of one request. */
async function begin(key: ApiKey, name: string): Promise<string> {
  const line = JSON.stringify({ custom_id: name, method: 'POST', url: endpoint, body: { name } });
  const { id } = await new FileStore(kept.files!, key.id).put('in.jsonl', 'batch', [Buffer.from(line)]);
  return (
    await batches.create(key, { endpoint, input_file_id: id, completion_window: '24h', metadata: null })
  ).id;
}

/** Answers one after the other, until so many batches have begun. */
async function untilBegun(count: number): Promise<string[]> {
  await until(() => begun.length > 0, 'the first batch to begin');
  while (begun.length < count) {
    const known = begun.length;
    answer();
    await until(() => begun.length > known, `batch ${known + 1} to begin`);
  }
  return begun;
}

const newKey = (name: string, parent_id?: string): ApiKey => keys.create(name, {}, { parent_id }).key;

it('gives the next lane to the key that had none, and then to each in turn', async () => {
  const [a, b] = [newKey('a'), newKey('b')];
  for (const number of [1, 2, 3, 4, 5]) await begin(a, `a${number}`);
  await begin(b, 'b1');
  expect(await untilBegun(2)).toEqual(['a1', 'b1']);
  // Who comes again has had a lane: those that wait are not passed for ever.
  await begin(b, 'b2');
  expect(await untilBegun(7)).toEqual(['a1', 'b1', 'a2', 'b2', 'a3', 'a4', 'a5']);
});

it('takes derived keys for the key that they are derived from', async () => {
  const [a, b] = [newKey('a'), newKey('b')];
  await begin(a, 'a1');
  await begin(newKey('derived', a.id), 'a2');
  await begin(newKey('derived', a.id), 'a3');
  await begin(b, 'b1');
  expect(await untilBegun(4)).toEqual(['a1', 'b1', 'a2', 'a3']);
});

it('refuses more of one key than may be open, until one of them ends', async () => {
  const [a, b] = [newKey('a'), newKey('b')];
  const derived = newKey('derived', a.id);
  const made = await Promise.allSettled(
    Array.from({ length: open_max + 3 }, (_, at) => begin(at % 2 ? a : derived, `a${at}`)),
  );
  const refused = made.filter((one) => one.status === 'rejected');
  expect(refused.map(({ reason }) => [reason.code, reason.http_status])).toEqual(
    Array(3).fill(['E_KEY_BATCHES', 429]),
  );
  await expect(begin(a, 'more')).rejects.toThrow('one key may have 6');
  await begin(b, 'b1');
  await untilBegun(2);
  await begin(a, 'again');
});

it('ends a batch that is cancelled while it waits, without a lane', async () => {
  const a = newKey('a');
  await begin(a, 'a1');
  const second = await begin(a, 'a2');
  await begin(a, 'a3');
  await batches.cancel(a, second);
  await until(async () => (await batches.find(a, second)).status === 'cancelled', 'its end');
  expect(await untilBegun(2)).toEqual(['a1', 'a3']);
});

it('ends a batch in the same way that was cancelled at another gateway of the site', async () => {
  const a = newKey('a');
  await begin(a, 'a1');
  const second = await begin(a, 'a2');
  await begin(a, 'a3');
  const gateway_folder = join(root, 'gateway-2');
  const other = new Batches({ gateway_folder, kept, keys, log, ask: () => expect.unreachable() });
  expect((await other.cancel(a, second)).status).toBe('cancelling');
  await other.close();
  await until(async () => (await batches.find(a, second)).status === 'cancelled', 'its end');
  expect(await untilBegun(2)).toEqual(['a1', 'a3']);
});
