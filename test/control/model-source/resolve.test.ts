import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseModelSource } from '../../../control/model-source/parse-source.ts';
import { type ResolveContext, resolveModelSource } from '../../../control/model-source/resolve.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { writeTinyGguf, writeTinyHfFolder } from './support.ts';

let folder: string;
const commit = 'b'.repeat(40);

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-source-'));
  await writeTinyGguf(join(folder, 'tiny.gguf'));
  mkdirSync(join(folder, 'two'));
  cpSync(join(folder, 'tiny.gguf'), join(folder, 'two', 'a.gguf'));
  cpSync(join(folder, 'tiny.gguf'), join(folder, 'two', 'b.gguf'));
  mkdirSync(join(folder, 'one'));
  cpSync(join(folder, 'tiny.gguf'), join(folder, 'one', 'only.gguf'));
  writeTinyHfFolder(join(folder, 'hf'));
  const snapshot = join(folder, 'home', 'hub', 'models--org--name', 'snapshots', commit);
  writeTinyHfFolder(snapshot);
  const refs = join(folder, 'home', 'hub', 'models--org--name', 'refs');
  mkdirSync(refs);
  writeFileSync(join(refs, 'main'), commit);
  writeTinyHfFolder(join(folder, 'site', 'org', 'kept'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const resolveHere = (source: string, more: Partial<ResolveContext> = {}) =>
  resolveModelSource(source, { base_folder: folder, hf_home: join(folder, 'home'), ...more });

async function failure(promise: Promise<unknown>): Promise<HpcserveError> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(HpcserveError);
  return error as HpcserveError;
}

describe('sources', () => {
  test.each([
    ['tiny.gguf', 'gguf', 'path', 'tiny.gguf'],
    ['./one', 'gguf', 'path', 'one/only.gguf'],
    ['hf', 'hf-folder', 'path', 'hf'],
    ['hf:org/name', 'hf-folder', 'cache', `home/hub/models--org--name/snapshots/${commit}`],
    [
      `hf:org/name@${commit.slice(0, 8)}`,
      'hf-folder',
      'cache',
      `home/hub/models--org--name/snapshots/${commit}`,
    ],
    ['hf:org/kept', 'hf-folder', 'models_dir', 'site/org/kept'],
    ['org/kept', 'hf-folder', 'models_dir', 'site/org/kept'],
    ['alias:best', 'gguf', 'path', 'tiny.gguf'],
  ])('%s', async (source, kind, origin, path) => {
    const aliases = { best: 'alias:better', better: './tiny.gguf' };
    const resolved = await resolveHere(source, { models_dir: join(folder, 'site'), aliases });
    expect(resolved).toMatchObject({ source, kind, origin, path: join(folder, path) });
    expect(resolved.fingerprint).toMatch(/^[0-9a-f]{32}$/);
    expect(resolved.total_bytes).toBe(resolved.summary.file_bytes);
  });

  test('the fingerprint changes with content, size and time, and with nothing else', async () => {
    const path = join(folder, 'changing.gguf');
    cpSync(join(folder, 'tiny.gguf'), path);
    utimesSync(path, 1000, 1000);
    const first = (await resolveHere(path)).fingerprint;
    expect((await resolveHere(path)).fingerprint).toBe(first);
    symlinkSync(path, join(folder, 'link.gguf'));
    utimesSync(path, 1000, 2000);
    expect((await resolveHere(path)).fingerprint).not.toBe(first);
  });

  test.each([
    ['hf:org/name@v1.0', { id: 'org/name', revision: 'v1.0' }],
    ['hf:org/name@refs/pr/1', { id: 'org/name', revision: 'refs/pr/1' }],
    ['hf:org/name/sub/a.gguf', { id: 'org/name', revision: 'main', file: 'sub/a.gguf' }],
    ['hf:org/name@v1/a.gguf', { id: 'org/name', revision: 'v1', file: 'a.gguf' }],
  ])('%s is parsed', (source, repository) => {
    expect(parseModelSource(source)).toEqual({ kind: 'hub', repository });
  });

  test.each([
    '',
    ' ',
    'hf:name',
    'hf:org/../x',
    'hf:org/name@../../x',
    'hf:org/name/../../x.gguf',
    's3://bucket/x',
    'file:/x',
  ])('%j is refused', (source) => {
    expect(() => parseModelSource(source)).toThrow(HpcserveError);
  });
});

describe('what cannot be resolved says why and what is near', () => {
  test('a typing error in a file and in a folder', async () => {
    const file = await failure(resolveHere('tinny.gguf'));
    expect(file.code).toBe('E_MODEL_MISSING');
    expect(file.try.join()).toContain(join(folder, 'tiny.gguf'));
    const inside = await failure(resolveHere('oen/only.gguf'));
    expect(inside.because[0]).toBe(`there is no "oen" in ${folder}`);
    expect(inside.try.join()).toContain(join(folder, 'one'));
  });

  test('an id without hf:', async () => {
    expect((await failure(resolveHere('org/name'))).try.join()).toContain('hf:org/name');
  });

  test('an id that is not cached', async () => {
    const error = await failure(resolveHere('hf:org/nane', { models_dir: join(folder, 'site') }));
    expect(error.code).toBe('E_MODEL_NOT_CACHED');
    expect(error.because).toHaveLength(2);
    expect(error.try).toEqual([
      'did you mean hf:org/name?',
      'on a host with internet: hpcserve model pull hf:org/nane',
    ]);
    expect((await failure(resolveHere('hf:org/name@v2'))).because.join()).toContain('none of revision v2');
  });

  test('aliases: unknown, and in a circle', async () => {
    const unknown = await failure(resolveHere('alias:bset', { aliases: { best: 'x' } }));
    expect(unknown.code).toBe('E_MODEL_ALIAS');
    expect(unknown.try.join()).toContain('alias:best');
    const circle = await failure(resolveHere('alias:a', { aliases: { a: 'alias:b', b: 'alias:a' } }));
    expect(circle.because.join()).toContain('a → b → a');
    expect((await failure(resolveHere('alias:constructor', { aliases: {} }))).code).toBe('E_MODEL_ALIAS');
  });

  test('a folder with several models, and a web address', async () => {
    expect((await failure(resolveHere('two'))).because).toEqual(['a.gguf', 'b.gguf']);
    const address = await failure(resolveHere('https://user:word@host.example/m.gguf?sig=secret'));
    expect(address.code).toBe('E_MODEL_SOURCE');
    expect(address.toText()).toContain('https://host.example/m.gguf');
    expect(address.toText()).not.toMatch(/secret|word@/);
  });
});
