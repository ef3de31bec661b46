/** The process that keeps deployments and has the gateway beside it, as it runs in a job of the two. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { writeGatewayConfig } from '../../../control/gateway/process.ts';
import { inspectKeeper } from '../../../control/keeper/keeper-process.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { readJsonIfThere } from '../../../host/whole-file.ts';
import {
  type GatewayEndpoint,
  gatewayFiles,
  type StateLayout,
  stateLayout,
} from '../../../spec/state-layout.ts';
import { site } from '../support.ts';

let folder: string;
let layout: StateLayout;
let keeper: ChildProcess | undefined;
let output: string;
let ended: Promise<number | null>;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-beside-'));
  layout = stateLayout(folder, 'local');
  mkdirSync(layout.gateway_folder, { recursive: true, mode: 0o700 });
  output = '';
});
afterEach(async () => {
  keeper?.kill('SIGKILL');
  const pid = gatewayPid();
  if (pid !== undefined && isThere(pid)) process.kill(pid, 'SIGKILL');
  await ended;
  rmSync(folder, { recursive: true, force: true });
});

function start(): void {
  writeFileSync(join(folder, 'site.yaml'), JSON.stringify({ name: 'local', kind: 'local' }));
  keeper = spawn(process.execPath, [
    join(packageRoot, 'dist/control/keeper/main.js'),
    ...['--site', join(folder, 'site.yaml'), '--state-dir', dirname(layout.root)],
    ...['--gateway-config', writeGatewayConfig(site, layout)],
  ]);
  for (const stream of [keeper.stdout!, keeper.stderr!])
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
  ended = new Promise((resolve) => keeper!.once('close', resolve));
}

function gatewayPid(): number | undefined {
  const endpoint = readJsonIfThere(join(layout.gateway_folder, gatewayFiles.endpoint));
  return (endpoint as GatewayEndpoint | undefined)?.pid;
}
function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}
/** Whether a SIGTERM was sent to a process that has not taken it yet. */
function waitsForTerm(pid: number): boolean {
  const [, pending] = /^ShdPnd:\s+([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))!;
  return (BigInt(`0x${pending}`) & (1n << 14n)) !== 0n;
}
const gatewayUp = () => expect.poll(gatewayPid, { timeout: 20_000 }).toBeDefined();

it('hands the end of the job on to the gateway, which drains, however often Slurm says it', async () => {
  start();
  await gatewayUp();
  const holder = Number(readFileSync(`/proc/${keeper!.pid}/task/${keeper!.pid}/children`, 'utf8'));
  // The keeper waits for what is stopped, so that it is there for the second signal however slow the machine is.
  process.kill(holder, 'SIGSTOP');
  try {
    // A signal that overtakes the stop is taken, and waits no more.
    await expect.poll(() => readFileSync(`/proc/${holder}/stat`, 'utf8')).toMatch(/\) T /);
    // To this process alone, as Slurm does where it tracks processes by cgroup.
    keeper!.kill('SIGTERM');
    await expect.poll(() => waitsForTerm(holder), { timeout: 30_000 }).toBe(true);
    keeper!.kill('SIGTERM');
    await expect.poll(() => waitsForTerm(keeper!.pid!), { timeout: 30_000 }).toBe(false);
  } finally {
    process.kill(holder, 'SIGCONT');
  }
  expect(await ended).toBe(0);
  expect(output).toContain('gateway drains');
  expect(output).toContain('gateway stopped');
  expect(isThere(gatewayPid()!)).toBe(false);
}, 60_000);

it('starts the gateway as every gateway is started', async () => {
  start();
  await gatewayUp();
  const words = readFileSync(`/proc/${gatewayPid()}/cmdline`, 'utf8').split('\0');
  expect(words).toContain('--use-largepages=silent');
}, 40_000);

it('goes on keeping when its folder can be used again', async () => {
  writeFileSync(layout.keeper_folder, 'in the way');
  start();
  await gatewayUp();
  await expect.poll(() => output, { timeout: 10_000 }).toContain('EEXIST');
  expect(inspectKeeper(layout).state).toBe('not_running');
  rmSync(layout.keeper_folder);
  await expect.poll(() => inspectKeeper(layout).state, { timeout: 30_000, interval: 200 }).toBe('running');
  expect(isThere(gatewayPid()!)).toBe(true);
}, 60_000);
