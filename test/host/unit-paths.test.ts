/** What a container has to be given for a unit: models of a Hugging Face cache, and the files that a command names. */
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { brokenLinks, pathsOfUnit } from '../../host/unit-paths.ts';
import { unitOf } from '../agent/support.ts';

let base: string;
beforeEach(() => {
  base = realpathSync(mkdtempSync(join(tmpdir(), 'hpcserve-paths-')));
});
afterEach(() => rmSync(base, { recursive: true, force: true }));

function file(...path: string[]): string {
  const made = join(base, ...path);
  mkdirSync(dirname(made), { recursive: true });
  writeFileSync(made, '');
  return made;
}
function link(target: string, ...path: string[]): string {
  const made = join(base, ...path);
  mkdirSync(dirname(made), { recursive: true });
  symlinkSync(target, made);
  return made;
}
const pathsOf = (model_path: string, model: Parameters<typeof unitOf>[0] = { name: 'm' }): string[] =>
  pathsOfUnit(unitOf(model, { model_path })).sort();

describe('the model', () => {
  it('is a folder, or the folder of its file, whether this host sees it or not', () => {
    file('llama', 'config.json');
    expect(pathsOf(join(base, 'llama'))).toEqual([join(base, 'llama')]);
    expect(pathsOf(file('gguf', 'a.gguf'))).toEqual([join(base, 'gguf')]);
    expect(pathsOf('/scratch/nowhere/b.gguf')).toEqual(['/scratch/nowhere']);
  });

  it('of a Hugging Face cache is a folder of links: where they lead comes along', () => {
    file('hub/models--a--b/blobs/0f');
    file('hub/models--a--b/blobs/1f');
    const snapshot = join(base, 'hub/models--a--b/snapshots/7c');
    link('../../blobs/0f', 'hub/models--a--b/snapshots/7c/config.json');
    link('../../../blobs/1f', 'hub/models--a--b/snapshots/7c/onnx/model.bin');
    const blobs = join(base, 'hub/models--a--b/blobs');
    expect(pathsOf(snapshot)).toEqual([blobs, snapshot]);
    const one = link('../../blobs/0f', 'hub/models--a--b/snapshots/7c/m.gguf');
    expect(pathsOf(one)).toEqual([blobs, snapshot]);
  });

  it('is followed link by link, also where a cache moved to another filesystem', () => {
    file('scratch/blobs/0f');
    link(join(base, 'scratch'), 'home/cache');
    link('../cache/blobs/0f', 'home/kept/model.gguf');
    const model = link('../kept/model.gguf', 'home/models/m.gguf');
    expect(pathsOf(model)).toEqual(
      ['home/models', 'home/kept', 'home/cache/blobs', 'scratch/blobs']
        .map((path) => join(base, path))
        .sort(),
    );
  });
});

describe('files that the command names', () => {
  it('are bound one by one: template, adapters in every form in which engines take them', () => {
    const template = file('templates', 'chat.jinja');
    const [sql, code, plugin] = [file('loras', 'sql'), file('loras', 'code'), file('plugins', 'parser.py')];
    const engine_args = [
      ...['--lora-modules', `sql=${sql}`, JSON.stringify({ name: 'code', path: code })],
      ...[`--tool-parser-plugin=${plugin}`, '--served-model-name', 'org/name', 'http://host/a'],
      ...['--not-there', join(base, 'missing'), '--system', '/usr/bin/env', '/etc/hostname'],
    ];
    const model = { name: 'm', chat_template: template, engine_args };
    expect(pathsOf('/models/x/y.gguf', model)).toEqual(['/models/x', template, sql, code, plugin].sort());
  });

  it('of a command of its own, too, but not its program, which the container has', () => {
    const [program, config] = [file('bin', 'server'), file('conf', 'server.toml')];
    expect(pathsOf('/models/x/y.gguf', { name: 'm', command: [program, `--config=${config}`] })).toEqual(
      ['/models/x', config].sort(),
    );
  });

  it('come along with a folder that holds them, unless the way there leads out of it', () => {
    const inside = file('all', 'model', 'chat.jinja');
    expect(pathsOf(join(base, 'all/model'), { name: 'm', chat_template: inside })).toEqual([
      join(base, 'all/model'),
    ]);
    file('elsewhere', 'chat.jinja');
    link('../../elsewhere', 'all', 'model', 'templates');
    const outside = join(base, 'all/model/templates/chat.jinja');
    expect(pathsOf(join(base, 'all/model'), { name: 'm', chat_template: outside })).toEqual(
      [join(base, 'all/model'), join(base, 'elsewhere'), outside].sort(),
    );
  });
});

it('links that lead nowhere are found, with where they lead', () => {
  file('m/blobs/0f');
  link('../blobs/0f', 'm/snapshot/config.json');
  const broken = link('../blobs/1f', 'm/snapshot/model.safetensors');
  expect(brokenLinks(join(base, 'm/snapshot'))).toEqual([{ link: broken, target: join(base, 'm/blobs/1f') }]);
  expect(brokenLinks(broken)).toHaveLength(1);
  expect(brokenLinks(join(base, 'm/blobs'))).toEqual([]);
});
