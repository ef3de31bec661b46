/** Routers of others: how each is started, and which of them are here. */
import { join } from 'node:path';
import { type RouterName, routerFolders, routerReleases } from '../../test/engines/environments.ts';
import { MissingNeed } from '../need.ts';

export interface RouterStart {
  /** Engines behind it. */
  workers: readonly string[];
  /** Of loopback. */
  port: number;
  /** All three serve metrics on a port of their own. */
  metrics_port: number;
  /** What the engines ask for: smg asks them which models they have. A throw-away one, for it stands in argv. */
  worker_key?: string;
  /** How it chooses, as its arguments say it; absent: in turn. */
  policy?: readonly string[];
}

const programs: Readonly<Record<RouterName, (bin: string) => string[]>> = {
  'vllm-router': (bin) => [join(bin, 'vllm-router')],
  'sglang-router': (bin) => [join(bin, 'python3'), '-m', 'sglang_router.launch_router'],
  smg: (bin) => [join(bin, 'smg'), 'launch'],
};

/**
 * The command line of a router; its log holds what goes wrong.
 * @param bin the folder of its programs
 */
export function routerCommand(name: RouterName, bin: string, start: RouterStart): string[] {
  return [
    ...programs[name](bin),
    ...['--worker-urls', ...start.workers],
    ...['--host', '127.0.0.1', '--port', String(start.port)],
    ...['--prometheus-host', '127.0.0.1', '--prometheus-port', String(start.metrics_port)],
    // One looks again only after 30 s where its worker was not quick enough for it.
    ...['--worker-startup-check-interval', '1'],
    ...(start.policy ?? ['--policy', 'round_robin']),
    ...['--log-level', 'error'],
    ...(start.worker_key === undefined ? [] : ['--api-key', start.worker_key]),
  ];
}

export interface Peer {
  name: RouterName;
  bin: string;
}

/**
 * The routers that are here; of the others it is said that they are missing.
 * @param isOtherHere somebody is there to stand beside in any case
 * @throws MissingNeed where nobody is
 */
export function routersHere(log: (line: string) => void, isOtherHere = false): Peer[] {
  const folders = routerFolders();
  const names = Object.keys(routerReleases) as RouterName[];
  const here = names.flatMap((name) => {
    const bin = folders[name];
    return bin === undefined ? [] : [{ name, bin }];
  });
  if (here.length === 0 && !isOtherHere)
    throw new MissingNeed(
      `routers to stand beside are not here: ${names.join(', ')}`,
      'npm run engines -- routers',
    );
  const missing = names.filter((name) => folders[name] === undefined);
  if (missing.length > 0) log(`missing: ${missing.join(', ')} (npm run engines -- routers)`);
  return here;
}
