/**
 * OpenTela beside us, from a checkout that somebody has: a head, which clients ask, and a node beside the engine, which
 * is to it what the agent is to us. It knows no address but loopback, and would ask the internet for its peers where
 * there is one (`isolated.ts`).
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { findProgram } from '../../test/cluster/install.ts';
import type { Pinned } from '../gateway/process.ts';
import { instantAnswer, requestBody } from '../gateway/requests.ts';
import { freePort } from '../gateway/setting.ts';
import type { GatewayStage } from '../gateway/stage.ts';
import { MissingNeed } from '../need.ts';
import type { Contender, Target } from './contender.ts';

export const openTela = 'OpenTela';
export const openTelaWithNode = 'OpenTela with its node';

/** The commit whose command line this is. */
const known_commit = '6904adf';
/** Until its node has found the engine, told of it, and the head has heard it. */
const ready_ms = 120_000;

/**
 * Builds it from its checkout, which is left as it is; nothing is downloaded.
 * @returns the path of its program
 * @throws MissingNeed where it cannot be built
 */
export function buildOpenTela(checkout: string, folder: string, log: (line: string) => void): string {
  const source = join(checkout, 'src');
  if (!existsSync(join(source, 'go.mod')))
    throw new MissingNeed(
      `OpenTela is not there: ${checkout} is no checkout of it`,
      `git clone https://github.com/eth-easl/OpenTela, and its folder behind --opentela`,
    );
  const go = findProgram('go');
  if (go === undefined)
    throw new MissingNeed('OpenTela cannot be built: there is no go', 'install Go, as its go.mod asks for');
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: source, encoding: 'utf8' });
  log(
    `building OpenTela at ${commit.trim()}${commit.startsWith(known_commit) ? '' : ` (known: ${known_commit})`} …`,
  );
  const program = join(folder, 'otela');
  // Neither modules nor another Go come over the network without being asked for.
  const env = {
    ...process.env,
    CGO_ENABLED: '0',
    GOFLAGS: '-mod=readonly',
    GOPROXY: 'off',
    GOTOOLCHAIN: 'local',
  };
  const built = spawnSync(go, ['build', '-trimpath', '-o', program, './entry'], {
    cwd: source,
    env,
    encoding: 'utf8',
  });
  if (built.status !== 0)
    throw new MissingNeed(
      `OpenTela cannot be built: ${built.stderr.trim().slice(-500)}`,
      `where modules are missing: go mod download, in ${source}`,
    );
  return program;
}

interface Pair {
  head: Pinned;
  node: Pinned;
  url: string;
}

/** One before the instant answers and one before the paced streams, each with its node. */
export async function startOpenTela(
  stage: GatewayStage,
  program: string,
  engines: Readonly<Record<'instant' | 'paced', string>>,
): Promise<Contender[]> {
  const instant = await startPair(stage, program, 'instant', engines.instant);
  const paced = await startPair(stage, program, 'paced', engines.paced);
  const targetOf = ({ head, node, url }: Pair, isWithNode: boolean): Target => ({
    url,
    model: 'bench',
    pid: head.child.pid!,
    cpu_us: () => head.cpu_us() + (isWithNode ? node.cpu_us() : 0),
  });
  return [
    { name: openTela, instant: targetOf(instant, false), paced: targetOf(paced, false) },
    {
      name: openTelaWithNode,
      instant: targetOf(instant, true),
      paced: targetOf(paced, true),
      cpu_only: true,
    },
  ];
}

async function startPair(
  stage: GatewayStage,
  program: string,
  name: string,
  engine_url: string,
): Promise<Pair> {
  const begin = async (what: string, args: readonly string[]): Promise<Pinned & Ports> => {
    const ports = { http: await freePort(), tcp: await freePort(), udp: await freePort() };
    // Each keeps its key and its table there.
    const home = join(stage.folder, `otela-${name}-${what}`);
    mkdirSync(home, { mode: 0o700 });
    const command = [
      ...[program, 'start', '--tcpport', String(ports.tcp), '--udpport', String(ports.udp)],
      ...args,
    ];
    const env = { HOME: home, OF_PORT: String(ports.http) };
    return {
      ...(await stage.start(`the ${what} of OpenTela`, stage.proxyCores, command, ports.http, env)),
      ports,
    };
  };
  const standalone = ['--mode', 'standalone', '--public-addr', '127.0.0.1', '--seed', '0'];
  const head = await begin('head', standalone);
  const origin = `http://127.0.0.1:${head.ports.http}`;
  const bootstrap = `/ip4/127.0.0.1/tcp/${head.ports.tcp}/p2p/${await peerOf(origin)}`;
  const service = ['--service.name', 'llm', '--service.port', new URL(engine_url).port];
  const node = await begin('node', ['--bootstrap.addr', bootstrap, '--seed', '1', ...service]);
  const url = `${origin}/v1/service/llm/v1/chat/completions`;
  await untilServed(url);
  return { head, node, url };
}

interface Ports {
  ports: Readonly<Record<'http' | 'tcp' | 'udp', number>>;
}

const tableSchema = z.record(z.string(), z.object({ id: z.string() }));

/** Who a head is to its mesh, as it says itself as long as nobody else is there. */
async function peerOf(origin: string): Promise<string> {
  const table = tableSchema.parse(await (await fetch(`${origin}/v1/dnt/table`)).json());
  const [own] = Object.values(table);
  if (!own) throw new Error(`the head of OpenTela at ${origin} does not say who it is`);
  return own.id;
}

/** By what it answers: an error of its relay has the status 200, too. @throws Error after `ready_ms` */
async function untilServed(url: string): Promise<void> {
  const deadline_ms = performance.now() + ready_ms;
  for (;;) {
    const answer = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: requestBody,
    });
    const text = await answer.text();
    if (text === instantAnswer) return;
    if (performance.now() > deadline_ms)
      throw new Error(
        `no answer from OpenTela within ${ready_ms / 1000} s: ${answer.status} ${text.slice(0, 200)}`,
      );
    await sleep(100);
  }
}
