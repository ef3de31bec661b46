/** A gateway that has no file descriptor left as it starts a worker in the place of one that ended. */
import { execFileSync } from 'node:child_process';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { compiledFile } from '../../../host/programs.ts';

it('a worker for which there are no pipes has ended, with the reason', () => {
  const worker = pathToFileURL(compiledFile('gateway/processes/worker-process.js')).href;
  const passed = pathToFileURL(compiledFile('gateway/processes/passed-requests.js')).href;
  const script = `
    import { openSync } from 'node:fs';
    import { WorkerProcess } from ${JSON.stringify(worker)};
    import { PassedRequests } from ${JSON.stringify(passed)};
    const services = { passed: new PassedRequests({ isProven: () => false, tunnel: () => Promise.reject() }) };
    const ended = (how, left) => {
      process.stdout.write(how + ', ' + left.length + ' left');
      process.exit();
    };
    // Three are enough for the first pipes of a worker, and not for all.
    const files = [];
    try { for (;;) files.push(openSync('/dev/null')); } catch {}
    (await import('node:fs')).closeSync(files.pop());
    const process_ = new WorkerProcess(1, services, { ready() {}, ended });
    process_.tell(['keys', 1, []]);`;
  const limited = [
    '-c',
    'ulimit -n 256; exec "$@"',
    'sh',
    process.execPath,
    '--input-type=module',
    '-e',
    script,
  ];
  expect(execFileSync('sh', limited, { encoding: 'utf8', timeout: 20_000 })).toBe(
    `spawn ${process.execPath} EMFILE, 0 left`,
  );
});
