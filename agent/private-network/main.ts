/**
 * Runs a server that knows neither keys nor unix sockets where nobody else can reach it: in a network namespace that
 * has nothing but a loopback interface of its own. A unix socket in a 0700 folder, which is of no namespace, leads to
 * it.
 *
 * `unshare --map-root-user --net -- node main.js PLAN.json`, with a `PrivateNetworkPlan` in the file. Ends as the
 * server does, and with 1 where the namespace or a command of `first` fails.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { constants } from 'node:os';
import { pipeline } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { bringLoopbackUp } from '../../native/loopback.ts';
import type { PrivateNetworkPlan } from './plan.ts';

/** Between two tries to reach a server that does not listen yet. */
const retry_ms = 50;

const file = process.argv[2];
if (file === undefined) throw new Error('usage: main.js PLAN.json');
const plan = JSON.parse(readFileSync(file, 'utf8')) as PrivateNetworkPlan;
process.umask(0o077);
bringLoopbackUp();
const server = start(plan.serve);
const ended = exitOf(server);
// The whole process group is signalled; the server's end is what ends this process.
process.on('SIGTERM', () => server.kill('SIGTERM'));
void ended.then((code) => process.exit(code));
await untilListening(plan.port);
for (const argv of plan.first) {
  const code = await exitOf(start(argv));
  if (code === 0) continue;
  process.stderr.write(`${argv[0]} ${argv[1] ?? ''} failed with exit code ${code}\n`);
  server.kill('SIGTERM');
  await ended;
  process.exit(1);
}
createServer((client) => {
  const upstream = connect(plan.port, '127.0.0.1');
  // Either side may go away at any time: the other one is told by the end of its stream.
  pipeline(client, upstream, () => undefined);
  pipeline(upstream, client, () => undefined);
}).listen(plan.socket);

function start([program = '', ...args]: readonly string[]): ChildProcess {
  return spawn(program, args, { stdio: ['ignore', 'inherit', 'inherit'] });
}

function exitOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve) => {
    child.once('error', (error) => {
      process.stderr.write(`${error.message}\n`);
      resolve(127);
    });
    child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]));
  });
}

async function untilListening(port: number): Promise<void> {
  for (;;) {
    const listens = await new Promise<boolean>((resolve) => {
      const probe = connect(port, '127.0.0.1');
      probe.once('connect', () => {
        probe.destroy();
        resolve(true);
      });
      probe.once('error', () => resolve(false));
    });
    if (listens) return;
    await delay(retry_ms);
  }
}
