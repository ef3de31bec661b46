import { createRequire } from 'node:module';

const load = createRequire(import.meta.url);

/** ssh2, loaded when first needed: most commands never connect. It is CommonJS without names that `import` sees. */
export function ssh2(): typeof import('ssh2') {
  return load('ssh2') as typeof import('ssh2');
}
