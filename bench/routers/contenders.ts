/** What is measured: each router as a process on the same core, before the same upstreams. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { packageRoot } from '../../host/package-root.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import { RunningAgent, unitOf } from '../../test/agent/support.ts';
import { type Pinned, processCpu_us } from '../gateway/process.ts';
import { requestBody } from '../gateway/requests.ts';
import { delegationOf, freePort, launch_id, untilServed } from '../gateway/setting.ts';
import { type Closers, chatPath, type GatewayStage } from '../gateway/stage.ts';
import { pacedModels } from '../gateway/streams.ts';
import type { Contender, Target } from './contender.ts';
import { startOpenTela } from './opentela.ts';
import { type Peer, type RouterStart, routerCommand } from './peers.ts';
import { ours, oursWithAgent } from './side-by-side.ts';

const agentModel = 'bench-agent';
const engineProgram = join(packageRoot, 'dist/bench/gateway/paced-engine.js');
const proxyProgram = join(packageRoot, 'dist/bench/routers/node-proxy.js');
/** Until a router has found its worker: they look when they start, and then more and more rarely. */
const ready_ms = 120_000;

/**
 * Our gateway, nginx, our gateway with a node agent, what Node itself takes, and the routers of others.
 * @param otela the program of OpenTela, where it is one of them
 */
export async function startContenders(
  stage: GatewayStage,
  peers: readonly Peer[],
  otela: string | undefined,
  closers: Closers,
): Promise<Contender[]> {
  const { gateway, nginx, nginxStream } = stage;
  const own: Contender = {
    name: ours,
    instant: targetOf(gateway, gateway.url, 'bench'),
    paced: targetOf(gateway, gateway.url, pacedModels.channels),
    restart: async () => {
      await gateway.stop();
      const began_ms = performance.now();
      // Both of its targets, and what is measured of it before an agent, are the one process.
      Object.assign(gateway, await stage.startGateway());
      return began_ms;
    },
  };
  const contenders = [own, await withAgent(stage, closers)];
  contenders.push({
    name: 'nginx',
    instant: targetOf(nginx, nginx.url, 'bench'),
    paced: targetOf(nginxStream, nginxStream.url, 'bench'),
  });
  const worker_port = await freePort();
  await stage.start(
    'the paced upstream',
    stage.loadCores,
    [process.execPath, engineProgram, String(worker_port)],
    worker_port,
  );
  const paced_url = `http://127.0.0.1:${worker_port}`;
  const instant_url = new URL(stage.plainUpstreamUrl).origin;
  for (const router of [bareNode, ...peers.map(peerRouter)])
    contenders.push(await startRouter(stage, router, instant_url, paced_url));
  if (otela !== undefined)
    contenders.push(...(await startOpenTela(stage, otela, { instant: instant_url, paced: paced_url })));
  return contenders;
}

/** A restart puts another process behind a router: each question goes to the one that runs then. */
function targetOf(router: Pinned, url: string, model: string): Target {
  return {
    url,
    model,
    get pid() {
      return router.child.pid!;
    },
    cpu_us: () => router.cpu_us(),
  };
}

/** A program that passes requests on, in plain HTTP. */
interface Router {
  name: string;
  command(start: RouterStart): string[];
}

const peerRouter = ({ name, bin }: Peer): Router => ({
  name,
  command: (start) => routerCommand(name, bin, start),
});

const bareNode: Router = {
  name: 'Node alone',
  command: ({ workers, port }) => [process.execPath, proxyProgram, String(port), ...workers],
};

async function startRouter(
  stage: GatewayStage,
  { name, command }: Router,
  instant_url: string,
  paced_url: string,
): Promise<Contender> {
  const begin = async (worker: string): Promise<Pinned & { url: string }> => {
    const [port, metrics_port] = [await freePort(), await freePort()];
    const argv = command({ workers: [worker], port, metrics_port });
    const started = await stage.start(name, stage.proxyCores, argv, port);
    return { ...started, url: `http://127.0.0.1:${port}${chatPath}` };
  };
  const instant = await begin(instant_url);
  const paced = await begin(paced_url);
  const target = targetOf(instant, instant.url, 'bench');
  for (const { url } of [instant, paced]) await untilAnswered(url, stage.key);
  return {
    name,
    instant: target,
    paced: targetOf(paced, paced.url, 'bench'),
    restart: async () => {
      await instant.stop();
      const began_ms = performance.now();
      Object.assign(instant, await begin(instant_url));
      target.url = instant.url;
      return began_ms;
    },
  };
}

/** Asks until it is answered. @returns ms from now until the first answer @throws Error after `ready_ms` */
export async function untilAnswered(url: string, key: string, body = requestBody): Promise<number> {
  const began_ms = performance.now();
  for (;;) {
    const status = await fetch(url, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body,
    }).then(
      async (answer) => {
        await answer.arrayBuffer();
        return answer.status;
      },
      () => 'nobody listens',
    );
    const passed_ms = performance.now() - began_ms;
    if (status === 200) return passed_ms;
    if (passed_ms > ready_ms) throw new Error(`no answer from ${url} within ${ready_ms / 1000} s: ${status}`);
    await sleep(5);
  }
}

/** The same gateway, and behind it a real node agent with an engine, which says the same at the same pace. */
async function withAgent(stage: GatewayStage, closers: Closers): Promise<Contender> {
  const agent = startAgent(stage);
  closers.push(async () => {
    agent.process.kill('SIGTERM');
    await agent.ended;
  });
  const origin = new URL(stage.gateway.url).origin;
  await Promise.race([
    untilServed(origin, stage.key, [agentModel], ready_ms),
    agent.ended.then(({ code }) => {
      throw new Error(`the node agent ended with ${code}: ${agent.stderr.slice(-2000)}`);
    }),
  ]);
  const target: Target = {
    url: stage.gateway.url,
    model: agentModel,
    get pid() {
      return stage.gateway.child.pid!;
    },
    // The engine is a child of the agent, and no part of it.
    cpu_us: () => stage.gateway.cpu_us() + processCpu_us(agent.process.pid!),
  };
  return { name: oursWithAgent, instant: target, paced: target, cpu_only: true };
}

function startAgent({
  folder,
  config,
  provider,
  programs,
  proxyCores,
  loadCores,
}: GatewayStage): RunningAgent {
  const launch_folder = join(folder, 'launch');
  const runtime_folder = join(folder, 'run');
  for (const made of [launch_folder, runtime_folder]) mkdirSync(made, { mode: 0o700 });
  const engine = [programs.taskset, '-c', loadCores.join(','), process.execPath, engineProgram, '{socket}'];
  const unit = unitOf(
    { name: agentModel, command: engine, max_sequences: 4096 },
    { model_path: engineProgram, context_tokens: 4096, max_sequences: 4096 },
  );
  const launch: LaunchSpec = {
    format: 1,
    launch_id,
    deployment: 'bench',
    site: 'bench',
    provider: config.provider,
    tier: 'stable',
    node_kind: 'cpu',
    node_count: 1,
    units: [unit],
    mesh_folder: config.mesh_folder,
    launch_folder,
    runtime_folder,
    engine_prefix: [],
    heartbeat_ms: 1000,
  };
  const launch_file = join(launch_folder, 'launch.json');
  writeFileSync(launch_file, JSON.stringify(launch));
  const delegation = delegationOf(provider).toText();
  writeFileSync(join(launch_folder, launchFiles.delegation), delegation, { mode: 0o600 });
  return new RunningAgent(launch, launch_file, {}, [programs.taskset, '-c', proxyCores.join(',')]);
}
