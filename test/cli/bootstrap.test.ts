/** What `npm run build` does first in a clone: install, which compiles addons for the Node that runs. */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
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

describe('the lock of the bootstrap, on a folder that hosts share', () => {
  let clone: string;
  let lock: string;

  const write = (path: string, text: string): void => {
    const file = join(clone, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  };
  beforeEach(() => {
    clone = mkdtempSync(join(tmpdir(), 'hpcserve-lock-'));
    lock = join(clone, '.bootstrap-lock');
    for (const name of ['bootstrap', 'install-check', 'load-addons'])
      cpSync(join(packageRoot, `cli/${name}.mjs`), join(clone, `cli/${name}.mjs`));
    cpSync(join(packageRoot, 'native/object-wrap.h'), join(clone, 'native/object-wrap.h'));
    for (const path of ['package.json', 'tsconfig.json']) write(path, '{}');
    // Installed already: there is nothing that it would need.
    for (const path of ['package-lock.json', 'node_modules/.package-lock.json'])
      write(path, '{"packages": {}}');
    mkdirSync(join(clone, 'dist'));
    // What compiles tells whose the lock is meanwhile.
    compilerIs(`fs.cpSync(${JSON.stringify(join(lock, 'pid'))}, ${JSON.stringify(join(clone, 'owner'))})`);
  });
  afterEach(() => rmSync(clone, { recursive: true, force: true }));

  function compilerIs(script: string): void {
    write('node_modules/typescript/bin/tsc', `const fs = require('node:fs');\n${script};\n`);
  }

  function bootstrap(...argv: string[]): { ended: Promise<number | null>; told: () => string } {
    const child = spawn(process.execPath, [join(clone, 'cli/bootstrap.mjs'), ...argv]);
    let told = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      told += text;
    });
    return { ended: new Promise((resolve) => child.once('close', resolve)), told: () => told };
  }

  /** Of a process that has ended. */
  const pidGone = (): number => spawnSync(process.execPath, ['-e', '']).pid;

  it.each([
    ['one of this host', () => `${hostname()} ${pidGone()}`],
    ['one of a former release, which did not say its host', () => `${pidGone()}`],
  ])('is taken over where its process is gone: %s', async (_whose, owner) => {
    write('.bootstrap-lock/pid', owner());
    const { ended, told } = bootstrap('build');
    expect(await ended, told()).toBe(0);
    expect(readFileSync(join(clone, 'owner'), 'utf8')).toMatch(new RegExp(`^${hostname()} \\d+$`));
    expect(existsSync(lock)).toBe(false);
  });

  it('is waited for where another host has it, whose processes nobody sees here', async () => {
    const owner = `not-${hostname()} ${pidGone()}`;
    write('.bootstrap-lock/pid', owner);
    const { ended, told } = bootstrap('build');
    await expect.poll(told).toContain(`waiting for process ${owner.split(' ')[1]} on not-${hostname()}`);
    expect(readFileSync(join(lock, 'pid'), 'utf8')).toBe(owner);
    rmSync(lock, { recursive: true });
    expect(await ended, told()).toBe(0);
    expect(existsSync(join(clone, 'owner'))).toBe(true);
  });

  it('stays where one fails that has not taken it', async () => {
    write('.bootstrap-lock/pid', `${hostname()} ${process.pid}`);
    const { ended } = bootstrap('wrong');
    expect(await ended).toBe(2);
    expect(existsSync(lock)).toBe(true);
  });

  it('goes with the one that fails and has it', async () => {
    compilerIs('process.exitCode = 1');
    const { ended, told } = bootstrap('build');
    expect(await ended).toBe(1);
    expect(told()).toContain('the build failed');
    expect(existsSync(lock)).toBe(false);
  });
});
