/**
 * OpenTela, built from a checkout: a head, which is asked, and a node beside each engine. By itself it looks for others
 * on the internet, so all of the bench runs in a network namespace that has loopback alone.
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { findProgram } from '../../test/cluster/install.ts';
import type { Pinned } from '../gateway/process.ts';
import { freePort } from '../gateway/setting.ts';
import { chatPath, type GatewayStage } from '../gateway/stage.ts';
import { MissingNeed } from '../need.ts';
import type { BenchReport, BenchResult } from '../result.ts';
import { type Contender, type Target, targetOf, untilAnswered } from './contenders.ts';

export const openTela = 'OpenTela';
/** The head and the node beside the engine together, as our gateway and its agent are. */
const nameWithNode = 'OpenTela with its node';

/** @param interfaces of this machine, as Node lists those that are up */
export function isLoopbackAlone(
  interfaces: NodeJS.Dict<Pick<NetworkInterfaceInfo, 'internal'>[]> = networkInterfaces(),
): boolean {
  return Object.values(interfaces).every((addresses) => addresses!.every(({ internal }) => internal));
}

/**
 * The whole bench once more, where nobody but this machine can be reached.
 * @param args of the bench
 */
export function runOnLoopbackAlone(args: readonly string[]): BenchResult[] {
  const bench = [process.execPath, join(packageRoot, 'dist/bench/run.js'), 'routers', ...args, '--json'];
  const inside = ['--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh', ...bench];
  const { stdout, status, error } = spawnSync('unshare', inside, {
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  // It ends with 1 where a bar does not hold, too, and has printed all the same.
  if (error || stdout === '')
    throw new Error(`in a network namespace, the bench ended with ${status}`, { cause: error });
  return (JSON.parse(stdout) as BenchReport).results;
}

/**
 * Compiles it: minutes for the first time, and with the modules that Go finds on the internet.
 * @returns the program, in `folder`
 * @throws MissingNeed without Go, or where the checkout is none of OpenTela
 */
export function buildOpenTela(checkout: string, folder: string, log: (line: string) => void): string {
  const go = findProgram('go');
  if (go === undefined)
    throw new MissingNeed('OpenTela is written in Go, which is not here', 'install Go 1.25 or later');
  log(`building OpenTela in ${checkout}`);
  const program = join(folder, 'otela');
  const { status, stderr } = spawnSync(go, ['build', '-o', program, './entry'], {
    cwd: join(checkout, 'src'),
    encoding: 'utf8',
  });
  if (status !== 0)
    throw new MissingNeed(
      `OpenTela cannot be built from ${checkout}: ${(stderr ?? 'it has no folder src').trim()}`,
      'give --opentela a checkout of eth-easl/OpenTela; outside of a network namespace, Go fetches its modules',
    );
  return program;
}

/** A head and a node before each upstream; two contenders, which differ in whose CPU time counts. */
export async function startOpenTela(
  stage: GatewayStage,
  program: string,
  instant_port: number,
  paced_port: number,
): Promise<Contender[]> {
  const instant = await startPair(stage, program, 'instant', instant_port);
  const paced = await startPair(stage, program, 'paced', paced_port);
  for (const { head } of [instant, paced]) await untilAnswered(head.url, stage.key);
  return [
    { name: openTela, instant: instant.head, paced: paced.head },
    { name: nameWithNode, instant: both(instant), paced: both(paced), cpu_only: true },
  ];
}

interface Pair {
  head: Target;
  node: Pinned;
}

function both({ head, node }: Pair): Target {
  return { ...head, cpu_us: () => head.cpu_us() + node.cpu_us() };
}

async function startPair(
  { folder, proxyCores, start, key }: GatewayStage,
  program: string,
  label: string,
  engine_port: number,
): Promise<Pair> {
  const begin = async (
    what: string,
    args: string[],
  ): Promise<Pinned & { port: number; tcp_port: number }> => {
    const [port, tcp_port, udp_port] = [await freePort(), await freePort(), await freePort()];
    const home = join(folder, `opentela-${label}-${what}`);
    mkdirSync(home);
    const ports = ['--tcpport', String(tcp_port), '--udpport', String(udp_port)];
    const command = ['env', `HOME=${home}`, `OF_PORT=${port}`, program, 'start', ...args, ...ports];
    const started = await start(`OpenTela (${what})`, proxyCores, command, port);
    return { ...started, port, tcp_port };
  };
  const head = await begin('head', ['--mode', 'standalone', '--public-addr', '127.0.0.1', '--seed', '0']);
  const table = await fetch(`http://127.0.0.1:${head.port}/v1/dnt/table`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const [peer] = Object.keys((await table.json()) as Record<string, unknown>);
  const node = await begin('node', [
    ...['--bootstrap.addr', `/ip4/127.0.0.1/tcp/${head.tcp_port}/p2p/${peer!.replace('/', '')}`],
    ...['--service.name', 'llm', '--service.port', String(engine_port), '--seed', '1'],
  ]);
  const url = `http://127.0.0.1:${head.port}/v1/service/llm${chatPath}`;
  return { head: targetOf(head, url, 'bench'), node };
}
