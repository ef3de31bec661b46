/** What `npm run build` does first in a clone: install, which compiles addons for the Node that runs. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
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
    for (const path of ['cli/bootstrap.mjs', 'native/object-wrap.h'])
      cpSync(join(packageRoot, path), join(clone, path));
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

  it('compiles addons against the headers beside the Node that runs', () => {
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
    const built = join(clone, 'packages/addon/build/Release/addon.node');
    const { words } = createRequire(import.meta.url)(built) as { words: string };
    const wrapped = major >= 24 ? 'with native/object-wrap.h' : 'without';
    expect(words).toMatch(new RegExp(`^v${major}\\.\\S+ ${wrapped}$`));
  }, 120_000);
});
