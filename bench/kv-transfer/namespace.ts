import { spawnSync } from 'node:child_process';
import type { Network } from './contestants.ts';

const name = 'hpcserve-kv';
const [here, there] = ['10.213.77.1', '10.213.77.2'];

function ip(...args: string[]): boolean {
  return spawnSync('ip', args, { stdio: 'ignore' }).status === 0;
}

/**
 * A network namespace with an address of its own, joined to this one by a veth pair: two hosts on one machine.
 * @returns undefined where the system makes none (not root, no `ip`)
 */
export function openNamespace(): { network: Network; source: string; close: () => void } | undefined {
  const close = (): void => void ip('netns', 'del', name);
  close();
  const made =
    ip('netns', 'add', name) &&
    ip('link', 'add', 'hpckv0', 'type', 'veth', 'peer', 'name', 'hpckv1', 'netns', name) &&
    ip('addr', 'add', `${here}/30`, 'dev', 'hpckv0') &&
    ip('link', 'set', 'hpckv0', 'up') &&
    ip('-n', name, 'addr', 'add', `${there}/30`, 'dev', 'hpckv1') &&
    ip('-n', name, 'link', 'set', 'hpckv1', 'up') &&
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
  return { network, source: here, close };
}
