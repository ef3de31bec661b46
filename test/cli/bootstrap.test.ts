/** What `npm run build` does first in a clone: install, which compiles addons for the Node that runs. */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const major = Number(process.versions.node.split('.')[0]);
const hasHeaders = [dirname(dirname(process.execPath)), '/usr'].some((folder) => {
  const file = join(folder, 'include/node/node_version.h');
  return existsSync(file) && readFileSync(file, 'utf8').includes(`NODE_MAJOR_VERSION ${major}\n`);
});

/** An addon that says for which Node it was compiled, and with what before it. */
const addon = `#include <node.h>
#ifdef SRC_NODE_OBJECT_WRAP_H_
#define WRAPPED "with native/object-wrap.h"
#else
#define WRAPPED "without"
#endif
NODE_MODULE_INIT() {
  v8::Isolate* isolate = v8::Isolate::GetCurrent();
  v8::Local<v8::String> words = v8::String::NewFromUtf8(isolate, NODE_VERSION " " WRAPPED).ToLocalChecked();
  exports->Set(context, v8::String::NewFromUtf8(isolate, "words").ToLocalChecked(), words).FromJust();
}
`;
const gyp = { targets: [{ target_name: 'addon', sources: ['addon.cc'] }] };

describe.skipIf(!hasHeaders)('the bootstrap, without a network', () => {
  const clone = mkdtempSync(join(tmpdir(), 'hpcserve-bootstrap-'));

  function write(path: string, content: unknown): void {
    const file = join(clone, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
  }

  beforeAll(() => {
    const own = ['bootstrap', 'install-check', 'load-addons'].map((name) => `cli/${name}.mjs`);
    for (const path of [...own, 'native/object-wrap.h']) cpSync(join(packageRoot, path), join(clone, path));
    const dependencies = { addon: 'file:packages/addon', typescript: 'file:packages/typescript' };
    const allowScripts = { addon: true };
    write('package.json', { name: 'clone', version: '1.0.0', dependencies, allowScripts });
    write('package-lock.json', {
      name: 'clone',
      lockfileVersion: 3,
      requires: true,
      packages: {
        '': { name: 'clone', version: '1.0.0', dependencies },
        'node_modules/addon': { resolved: 'packages/addon', link: true },
        'node_modules/typescript': { resolved: 'packages/typescript', link: true },
        'packages/addon': { version: '1.0.0', hasInstallScript: true },
        'packages/typescript': { version: '1.0.0' },
      },
    });
    write('packages/addon/package.json', {
      name: 'addon',
      version: '1.0.0',
      scripts: { install: 'node-gyp rebuild' },
    });
    write('packages/addon/binding.gyp', gyp);
    write('packages/addon/addon.cc', addon);
    // Compiling the tree is none of this test: what does it finds nothing to do.
    write('packages/typescript/package.json', { name: 'typescript', version: '1.0.0' });
    write('packages/typescript/bin/tsc', '');
    write('tsconfig.json', {});
    mkdirSync(join(clone, 'dist'));
  });
  afterAll(() => rmSync(clone, { recursive: true, force: true }));

  const built = join(clone, 'packages/addon/build/Release/addon.node');
  const stamp = join(clone, 'node_modules/.hpcserve-installed');

  /** @returns what it said */
  function build(): string {
    const { status, stderr } = spawnSync(process.execPath, [join(clone, 'cli/bootstrap.mjs'), 'build'], {
      encoding: 'utf8',
      env: {
        PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
        HOME: clone,
        npm_config_cache: join(clone, 'cache'),
        npm_config_offline: 'true',
        // Where node-gyp would fetch headers from, if it looked for any.
        npm_config_disturl: 'http://127.0.0.1:9',
      },
    });
    expect(status, stderr).toBe(0);
    return stderr;
  }

  it('compiles addons against the headers beside the Node that runs', () => {
    expect(build()).toContain('installing');
    // By another process: what this one has loaded must not be written to, as later tests do.
    const words = execFileSync(process.execPath, ['-p', 'require(process.argv[1]).words', built], {
      encoding: 'utf8',
    }).trim();
    const wrapped = major >= 24 ? 'with native/object-wrap.h' : 'without';
    expect(words).toMatch(new RegExp(`^v${major}\\.\\S+ ${wrapped}$`));
  }, 120_000);

  it('takes what somebody else installed, where it is whole', () => {
    rmSync(stamp);
    expect(build()).not.toContain('installing');
    expect(existsSync(stamp)).toBe(true);
  });

  it.each([
    ['an addon does not fit Node', () => writeFileSync(built, 'compiled for another one')],
    ['addon is not compiled', () => rmSync(dirname(built), { recursive: true })],
    ['packages/typescript has another version', () => changeInstalled()],
    ['node_modules/typescript is gone', () => rmSync(join(clone, 'node_modules/typescript'))],
  ])('sees that %s', async (words, spoil) => {
    spoil();
    const { missingInstall } = (await import(join(clone, 'cli/install-check.mjs'))) as {
      missingInstall(root: string): string | undefined;
    };
    expect(missingInstall(clone)).toContain(words);
  });

  it('installs anew what is spoiled', () => {
    rmSync(stamp);
    expect(build()).toContain('installing');
    expect(existsSync(built)).toBe(true);
  }, 120_000);

  function changeInstalled(): void {
    const kept = join(clone, 'node_modules/.package-lock.json');
    const lock = JSON.parse(readFileSync(kept, 'utf8')) as { packages: Record<string, object> };
    lock.packages['packages/typescript'] = { version: '0.9.0' };
    writeFileSync(kept, JSON.stringify(lock));
  }
});
