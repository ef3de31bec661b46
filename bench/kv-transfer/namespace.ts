import { spawnSync } from 'node:child_process';
import type { Network } from './contestants.ts';

function ip(...args: string[]): boolean {
  return spawnSync('ip', args, { stdio: 'ignore' }).status === 0;
}

export interface Namespace {
  network: Network;
  /** Of this side. */
  source: string;
  /** Nothing comes through any more, and nobody is told. */
  cut(): void;
  mend(): void;
  close(): void;
}

/**
 * A network namespace with an address of its own, joined to this one by a veth pair: two hosts on one machine.
 * @param label of its names; a second one at a time has another, and another `subnet` (three numbers of an address)
 * @returns undefined where the system makes none (not root, no `ip`)
 */
export function openNamespace(label = 'kv', subnet = '10.213.77'): Namespace | undefined {
  const name = `hpcserve-${label}`;
  const [outer, inner] = [`hpc${label}0`, `hpc${label}1`];
  const [here, there] = [`${subnet}.1`, `${subnet}.2`];
  // The cable first: a namespace that processes are left in outlives its name, and keeps its end of it.
  const close = (): void => {
    ip('link', 'del', outer);
    ip('netns', 'del', name);
  };
  close();
  const made =
    ip('netns', 'add', name) &&
    ip('link', 'add', outer, 'type', 'veth', 'peer', 'name', inner, 'netns', name) &&
    ip('addr', 'add', `${here}/30`, 'dev', outer) &&
    ip('link', 'set', outer, 'up') &&
    ip('-n', name, 'addr', 'add', `${there}/30`, 'dev', inner) &&
    ip('-n', name, 'link', 'set', inner, 'up') &&
    ip('-n', name, 'link', 'set', 'lo', 'up');
  if (!made) {
    close();
    return undefined;
  }
  const network = {
    name: 'between network namespaces',
    address: there,
    through: ['ip', 'netns', 'exec', name],
  };
  // On the far side: without the near one, what is meant for it would take the way to everywhere else.
  const cable = (state: 'up' | 'down'): void => {
    if (!ip('-n', name, 'link', 'set', inner, state)) throw new Error(`${inner} did not go ${state}`);
  };
  return { network, source: here, cut: () => cable('down'), mend: () => cable('up'), close };
}
