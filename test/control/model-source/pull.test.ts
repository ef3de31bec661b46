import { randomBytes } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { PullEvent } from '../../../control/model-source/pull/progress.ts';
import { type PullOptions, pullModel } from '../../../control/model-source/pull/pull.ts';
import { resolveModelSource } from '../../../control/model-source/resolve.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { HubServer, sha256 } from './hub-server.ts';
import { writeTinyGguf, writeTinyHfFolder } from './support.ts';

let folder: string;
let hub: HubServer;
let events: PullEvent[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-pull-'));
  hub = await HubServer.start();
  events = [];
});
afterEach(async () => {
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

const content = randomBytes(300_000);

function pull(source: string, more: Partial<PullOptions> = {}) {
  return pullModel({
    source,
    environment: { HOME: folder, HF_ENDPOINT: hub.origin },
    working_folder: folder,
    cache: join(folder, 'cache'),
    retry_pause_ms: 1,
    retries: 3,
    on_event: (event) => events.push(event),
    ...more,
  });
}

async function failure(promise: Promise<unknown>): Promise<HpcserveError> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(HpcserveError);
  return error as HpcserveError;
}

/** Bytes of the unfinished `model.bin`. */
function arrived(): number {
  return statSync(join(folder, 'model.bin.incomplete'), { throwIfNoEntry: false })?.size ?? 0;
}

const notes = (): string[] => events.flatMap((event) => (event.kind === 'note' ? [event.message] : []));

describe('from an address', () => {
  test('the file arrives whole, with its SHA-256 and nothing beside it', async () => {
    hub.files.set('/model.bin', { content });
    const result = await pull(`${hub.origin}/model.bin`, { sha256: sha256(content).toUpperCase() });
    expect(readFileSync(result.path).equals(content)).toBe(true);
    expect(result.files[0]!.sha256).toBe(sha256(content));
    expect(readdirSync(folder)).toEqual(['model.bin']);
    expect(events.at(-1)).toMatchObject({ kind: 'file_done', verified: 'sha256', bytes: content.length });
  });

  test('cut connections continue where they stopped', async () => {
    hub.files.set('/model.bin', { content, cuts: [100_000, 50_000, 0, 70_000], arrived });
    const result = await pull(`${hub.origin}/model.bin`);
    expect(readFileSync(result.path).equals(content)).toBe(true);
    const ranges = hub.requests('GET', '/model.bin').map((entry) => entry.range);
    expect(ranges).toEqual([undefined, 'bytes=100000-', 'bytes=150000-', 'bytes=150000-', 'bytes=220000-']);
    expect(hub.seen[1]!.if_range).toMatch(/^"[0-9a-f]+"$/);
  });

  test('another run continues what an earlier one left', async () => {
    hub.files.set('/model.bin', { content, cuts: [120_000, 0, 0], arrived });
    const error = await failure(pull(`${hub.origin}/model.bin`, { retries: 1 }));
    expect(error.code).toBe('E_MODEL_PULL_NETWORK');
    expect(readFileSync(join(folder, 'model.bin.incomplete')).length).toBe(120_000);
    const result = await pull(`${hub.origin}/model.bin`, { sha256: sha256(content) });
    expect(readFileSync(result.path).equals(content)).toBe(true);
    expect(hub.seen.at(-1)!.range).toBe('bytes=120000-');
    expect(readdirSync(folder)).toEqual(['model.bin']);
  });

  test('a server that ignores Range starts over and says so', async () => {
    hub.files.set('/model.bin', { content, cuts: [100_000], arrived, ignore_range: true });
    const result = await pull(`${hub.origin}/model.bin`);
    expect(readFileSync(result.path).equals(content)).toBe(true);
    expect(notes()).toContain('the server cannot resume: starting over');
  });

  test.each([
    ['that honours If-Range', false],
    ['that ignores If-Range', true],
  ])('content that changes between two parts, from a server %s, is not mixed', async (_, ignore_if_range) => {
    const newer = randomBytes(300_000);
    hub.files.set('/model.bin', {
      content,
      cuts: [100_000],
      arrived,
      on_cut: () => hub.files.set('/model.bin', { content: newer, ignore_if_range }),
    });
    const result = await pull(`${hub.origin}/model.bin`);
    expect(readFileSync(result.path).equals(newer)).toBe(true);
    expect(notes().join()).toContain('the file changed on the server: starting over');
  });

  test('without any version from the server, and no checksum, parts are never joined', async () => {
    hub.files.set('/model.bin', { content, cuts: [100_000], arrived, anonymous: true });
    const result = await pull(`${hub.origin}/model.bin`);
    expect(readFileSync(result.path).equals(content)).toBe(true);
    expect(hub.requests('GET', '/model.bin').map((entry) => entry.range)).toEqual([undefined, undefined]);
  });

  test('a wrong checksum is an error that keeps nothing', async () => {
    hub.files.set('/model.bin', { content });
    const error = await failure(pull(`${hub.origin}/model.bin`, { sha256: '0'.repeat(64) }));
    expect(error.code).toBe('E_MODEL_CHECKSUM');
    expect(error.because.join()).toContain(sha256(content));
    expect(readdirSync(folder)).toEqual([]);
  });

  test('a damaged part left by an earlier run is noticed by the checksum and downloaded again', async () => {
    hub.files.set('/model.bin', { content });
    writeFileSync(join(folder, 'model.bin.incomplete'), randomBytes(1000));
    const result = await pull(`${hub.origin}/model.bin`, { sha256: sha256(content) });
    expect(readFileSync(result.path).equals(content)).toBe(true);
    expect(notes()).toContain('the checksum is wrong after joining parts: starting over');
  });

  test('a busy server is asked again, one that stays busy is an error', async () => {
    hub.files.set('/model.bin', { content, statuses: [503, 429] });
    await pull(`${hub.origin}/model.bin`);
    hub.files.set('/other.bin', { content, statuses: [500, 500, 500, 500, 500] });
    const error = await failure(pull(`${hub.origin}/other.bin`));
    expect(error.code).toBe('E_MODEL_PULL_NETWORK');
    expect(error.because.join()).toContain('500');
    expect(existsSync(join(folder, 'other.bin.incomplete'))).toBe(false);
  });

  test('a page instead of a model never gets the name of a model', async () => {
    const page = Buffer.from('<!doctype html><html><body>Please log in</body></html>');
    hub.files.set('/model.gguf', { content: page, content_type: 'text/html' });
    const error = await failure(pull(`${hub.origin}/model.gguf`));
    expect(error.code).toBe('E_MODEL_FORMAT');
    expect(error.because.join()).toContain('HTML page');
    expect(readdirSync(folder)).toEqual([]);
  });

  test('refusals name the address without its signature', async () => {
    const error = await failure(pull(`${hub.origin}/gone.gguf?X-Signature=very-secret`));
    expect(error.code).toBe('E_MODEL_PULL');
    expect(error.toText()).toContain('404');
    expect(error.toText()).not.toContain('very-secret');
  });

  test('two downloads of one file do not write into one another', async () => {
    hub.files.set('/model.bin', { content, on_get: () => undefined });
    const both = await Promise.allSettled([pull(`${hub.origin}/model.bin`), pull(`${hub.origin}/model.bin`)]);
    const refused = both.filter((entry) => entry.status === 'rejected');
    expect(refused.map((entry) => (entry.reason as HpcserveError).code)).toEqual(['E_MODEL_PULL_BUSY']);
    expect(readFileSync(join(folder, 'model.bin')).equals(content)).toBe(true);
  });

  test('a file that cannot fit is refused before it is written', async () => {
    hub.files.set('/model.bin', { content });
    hub.addRepository('org/huge', 'c'.repeat(40), { 'huge.gguf': { content } });
    const listing = JSON.stringify({
      sha: 'c'.repeat(40),
      siblings: [{ rfilename: 'huge.gguf', size: Number.MAX_SAFE_INTEGER }],
    });
    hub.files.set('/api/models/org/huge/revision/main', { content: Buffer.from(listing) });
    const error = await failure(pull('hf:org/huge'));
    expect(error.code).toBe('E_MODEL_DISK');
    expect(error.because.join()).toMatch(/are free/);
    expect(hub.requests('GET', 'huge.gguf')).toEqual([]);
  });

  test('an interrupted download stops at once and can be continued', async () => {
    const abort = new AbortController();
    hub.files.set('/model.bin', {
      content,
      cuts: [100_000],
      arrived,
      on_get: (n) => n === 2 && abort.abort(new Error('stop')),
    });
    await expect(pull(`${hub.origin}/model.bin`, { signal: abort.signal })).rejects.toThrow('stop');
    expect(readFileSync(join(folder, 'model.bin.incomplete')).length).toBe(100_000);
  });
});

describe('from a hub', () => {
  const commit = 'a'.repeat(40);

  async function addGguf(more: Partial<import('./hub-server.ts').ServedFile> = {}): Promise<Buffer> {
    const path = join(folder, 'tiny.gguf');
    await writeTinyGguf(path);
    const model = readFileSync(path);
    rmSync(path);
    hub.addRepository('org/tiny', commit, {
      'tiny.gguf': { content: model, linked_etag: sha256(model), ...more },
      'README.md': { content: Buffer.from('# Tiny\n') },
    });
    return model;
  }

  test('a GGUF repository lands in the cache and resolves offline', async () => {
    const model = await addGguf({ cuts: [1000] });
    const result = await pull('hf:org/tiny');
    expect(result.commit).toBe(commit);
    expect(readFileSync(result.files[0]!.path).equals(model)).toBe(true);
    const root = join(folder, 'cache', 'models--org--tiny');
    expect(readFileSync(join(root, 'refs', 'main'), 'utf8')).toBe(commit);
    expect(readlinkSync(join(root, 'snapshots', commit, 'tiny.gguf'))).toBe(`../../blobs/${sha256(model)}`);
    const resolved = await resolveModelSource('hf:org/tiny', {
      base_folder: folder,
      environment: { HF_HUB_CACHE: join(folder, 'cache') },
    });
    expect(resolved).toMatchObject({ kind: 'gguf', origin: 'cache', total_bytes: model.length });
    const before = hub.requests('GET', 'tiny.gguf').length;
    await pull('hf:org/tiny');
    expect(hub.requests('GET', 'tiny.gguf').length).toBe(before);
  });

  /** The listing of `org/tiny` says that its model has so many bytes, whatever it has. */
  function listModel(size: number, revision_commit = commit): void {
    const listing = { sha: revision_commit, siblings: [{ rfilename: 'tiny.gguf', size }] };
    hub.files.set('/api/models/org/tiny/revision/main', { content: Buffer.from(JSON.stringify(listing)) });
  }

  test('others read the cache as far as the umask lets them', async () => {
    const model = await addGguf();
    const blob = join('blobs', sha256(model));
    const rights = (cache: string): number[] =>
      ['', blob, 'blobs', 'refs', 'refs/main', 'snapshots', join('snapshots', commit)].map(
        (path) => statSync(join(folder, cache, 'models--org--tiny', path)).mode & 0o777,
      );
    const umask = process.umask(0o022);
    const locks = new Set<number>();
    try {
      await pull('hf:org/tiny');
      process.umask(0o002);
      const cache = join(folder, 'of-a-group', 'hub');
      const lock = join(cache, 'models--org--tiny', `${blob}.lock`);
      const seeLock = (): void => {
        const { mode } = statSync(lock, { throwIfNoEntry: false }) ?? {};
        if (mode !== undefined) locks.add(mode & 0o777);
      };
      await pull('hf:org/tiny', { cache, on_event: seeLock });
    } finally {
      process.umask(umask);
    }
    expect(rights('cache')).toEqual([0o755, 0o644, 0o755, 0o755, 0o644, 0o755, 0o755]);
    expect(rights('of-a-group/hub')).toEqual([0o775, 0o664, 0o775, 0o775, 0o664, 0o775, 0o775]);
    expect(statSync(join(folder, 'of-a-group', 'hub')).mode & 0o777).toBe(0o775);
    // Another of the group takes over from a download that ended without a word.
    expect([...locks]).toEqual([0o775]);
  });

  test('a newer commit with the same model needs no room for it', async () => {
    const model = await addGguf();
    await pull('hf:org/tiny');
    const newer = 'b'.repeat(40);
    hub.addRepository('org/tiny', newer, { 'tiny.gguf': { content: model, linked_etag: sha256(model) } });
    listModel(Number.MAX_SAFE_INTEGER, newer);
    const result = await pull('hf:org/tiny');
    expect(result.commit).toBe(newer);
    expect(readFileSync(result.files[0]!.path).equals(model)).toBe(true);
    expect(hub.requests('GET', 'tiny.gguf').length).toBe(1);
  });

  test('what an earlier run left needs no room a second time', async () => {
    const model = await addGguf();
    const blobs = join(folder, 'cache', 'models--org--tiny', 'blobs');
    mkdirSync(blobs, { recursive: true });
    writeFileSync(join(blobs, `${sha256(model)}.incomplete`), model.subarray(0, 1000));
    listModel(Number.MAX_SAFE_INTEGER);
    const error = await failure(pull('hf:org/tiny'));
    expect(error.code).toBe('E_MODEL_DISK');
    expect(error.because.join()).toContain(`${Number.MAX_SAFE_INTEGER - 1000} bytes are to come`);
    listModel(model.length);
    const result = await pull('hf:org/tiny');
    const planned = events.findLast((event) => event.kind === 'planned');
    expect(planned).toMatchObject({ bytes_total: model.length, bytes_present: 1000 });
    expect(hub.requests('GET', 'tiny.gguf').map((entry) => entry.range)).toEqual(['bytes=1000-']);
    expect(readFileSync(result.files[0]!.path).equals(model)).toBe(true);
  });

  test('a safetensors repository comes with its companions, in parallel, small files verified as git blobs', async () => {
    const source = join(folder, 'source');
    writeTinyHfFolder(source, { shards: 3 });
    const files = Object.fromEntries(
      readdirSync(source).map((name) => {
        const bytes = readFileSync(join(source, name));
        return [
          name,
          { content: bytes, ...(name.endsWith('.safetensors') ? { linked_etag: sha256(bytes) } : {}) },
        ];
      }),
    );
    hub.addRepository('org/dense', commit, { ...files, 'pytorch_model.bin': { content: Buffer.alloc(10) } });
    const result = await pull('hf:org/dense', { parallel: 2 });
    expect(result.files.map((entry) => entry.file).sort()).toEqual(Object.keys(files).sort());
    const done = events.flatMap((event) =>
      event.kind === 'file_done' ? [[event.file, event.verified]] : [],
    );
    expect(Object.fromEntries(done)).toMatchObject({
      'config.json': 'git-sha1',
      'model-00001-of-00003.safetensors': 'sha256',
    });
    const resolved = await resolveModelSource('hf:org/dense', {
      base_folder: folder,
      environment: { HF_HUB_CACHE: join(folder, 'cache') },
    });
    expect(resolved.kind).toBe('hf-folder');
    expect(hub.requests('GET', 'pytorch_model.bin')).toEqual([]);
  });

  test('two files of equal content are downloaded once', async () => {
    const names = ['model.json', 'again/model.json'];
    // A cut makes the first download last longer than the second needs to begin.
    const files = names.map((name) => [name, { content, cuts: [100_000] }]);
    hub.addRepository('org/twice', commit, Object.fromEntries(files));
    const result = await pull('hf:org/twice', { include: ['*'], retry_pause_ms: 100 });
    expect(result.files.map((entry) => entry.file)).toEqual(names);
    for (const { path } of result.files) expect(readFileSync(path).equals(content)).toBe(true);
    expect(new Set(hub.seen.filter(({ method }) => method === 'GET').map(({ path }) => path))).toEqual(
      new Set(['/api/models/org/twice/revision/main', `/org/twice/resolve/${commit}/model.json`]),
    );
  });

  test('a model of a kind that our reader does not know is kept where its SHA-256 is right', async () => {
    const model = Buffer.from(await addGguf());
    const name = 'output_norm.weight';
    // Behind the name of a tensor of one dimension: their number, the dimension and the type.
    model.writeUInt32LE(9999, model.indexOf(name) + name.length + 4 + 8);
    hub.addRepository('org/newer', commit, { 'newer.gguf': { content: model, linked_etag: sha256(model) } });
    const result = await pull('hf:org/newer');
    expect(readFileSync(result.files[0]!.path).equals(model)).toBe(true);
    expect(notes().join()).toContain('unknown type 9999');
    hub.files.set('/newer.gguf', { content: model });
    expect((await failure(pull(`${hub.origin}/newer.gguf`))).code).toBe('E_MODEL_TENSOR_TYPE');
    expect(existsSync(join(folder, 'newer.gguf'))).toBe(false);
  });

  test('wrong content behind a right listing is refused', async () => {
    const model = await addGguf();
    const damaged = Buffer.from(model);
    damaged[damaged.length - 1]! ^= 1;
    hub.files.set(`/org/tiny/resolve/${commit}/tiny.gguf`, { content: damaged, linked_etag: sha256(model) });
    const error = await failure(pull('hf:org/tiny'));
    expect(error.code).toBe('E_MODEL_CHECKSUM');
    expect(existsSync(join(folder, 'cache', 'models--org--tiny', 'refs', 'main'))).toBe(false);
    expect(readdirSync(join(folder, 'cache', 'models--org--tiny', 'blobs'))).toEqual([]);
  });

  test('the token goes to the hub and never to the store that it redirects to, nor into messages', async () => {
    await using store = await HubServer.start();
    const model = await addGguf({ redirect_to: `${store.origin}/blob` });
    store.files.set('/blob', { content: model });
    const environment = { HOME: folder, HF_ENDPOINT: hub.origin, HF_TOKEN: 'hf_topsecret' };
    await pull('hf:org/tiny', { environment });
    expect(hub.seen.every((entry) => entry.authorization === 'Bearer hf_topsecret')).toBe(true);
    expect(store.seen.map((entry) => entry.authorization)).toEqual([undefined]);
    hub.files.set('/api/models/org/gated/revision/main', { content: Buffer.alloc(0), statuses: [403] });
    const error = await failure(pull('hf:org/gated', { environment }));
    expect(error.toText()).toContain('licence');
    expect(JSON.stringify([error, error.toText(), events])).not.toContain('topsecret');
  });

  test('a token file is read where HF_TOKEN is absent', async () => {
    await addGguf();
    writeFileSync(join(folder, 'token'), 'hf_fromfile\n', { mode: 0o600 });
    await pull('hf:org/tiny', {
      environment: { HOME: folder, HF_ENDPOINT: hub.origin, HF_TOKEN_PATH: join(folder, 'token') },
    });
    expect(hub.seen[0]!.authorization).toBe('Bearer hf_fromfile');
  });

  test('a listing that points outside of its folder is refused', async () => {
    hub.addRepository('org/evil', commit, { '../../../.bashrc': { content: Buffer.from('x') } });
    const error = await failure(pull('hf:org/evil', { include: ['*'] }));
    expect(error.code).toBe('E_MODEL_PULL');
    expect(error.because.join()).toContain('.bashrc');
  });

  test('several GGUF files ask which one; a wrong name gets the nearest', async () => {
    hub.addRepository('org/many', commit, {
      'many-Q4_0.gguf': { content: Buffer.alloc(1) },
      'many-Q8_0.gguf': { content: Buffer.alloc(1) },
    });
    const unclear = await failure(pull('hf:org/many'));
    expect(unclear.because.join()).toContain('many-Q4_0.gguf, many-Q8_0.gguf');
    const typo = await failure(pull('hf:org/many/many-Q8_O.gguf'));
    expect(typo.try.join()).toContain('hf:org/many/many-Q8_0.gguf');
  });

  test('an unknown repository and an answer that is no listing are told apart', async () => {
    expect((await failure(pull('hf:org/none'))).because.join()).toContain('404');
    hub.files.set('/api/models/org/html/revision/main', { content: Buffer.from('<html>proxy</html>') });
    const error = await failure(pull('hf:org/html'));
    expect(error.try.join()).toContain('HF_ENDPOINT');
  });
});
