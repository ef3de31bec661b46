/**
 * Nodes that are hosts of their own, as far as what runs there can tell: each has an address, a /tmp and a /dev/shm
 * that no other has. Linux's network and mount namespaces, which root may make; processes and their numbers are those
 * of the machine.
 *
 *     login node (this machine) ── bridge ─┬─ gh1: eth0, /tmp, /dev/shm
 *       slurmctld, munged, gateway         ├─ gh2
 *                                          └─ …   slurmd, and the jobs it starts
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { type ClusterFolders, clusterNodeNames } from './layout.ts';

/** Of a /tmp or a /dev/shm: engines put queues between their processes there. */
const tmpfs_size = '2g';

/** What is lacking to make them; empty where nothing is. */
export function lackingForHosts(): string {
  if (process.getuid?.() !== 0) return 'root';
  for (const program of ['ip', 'nsenter', 'unshare'])
    if (spawnSync(program, ['--version']).error) return program;
  const name = `hsprobe${process.pid}`;
  const added = spawnSync('ip', ['link', 'add', name, 'type', 'bridge'], { encoding: 'utf8' });
  if (added.status !== 0) return `network bridges (${added.stderr.trim()})`;
  ip('link', 'del', name);
  return '';
}

/** The network of one cluster. Its names and addresses follow from the folder, so that a crashed run leaves nothing. */
export class ClusterHosts {
  readonly #bridge: string;
  readonly #subnet: string;

  constructor({ base }: Pick<ClusterFolders, 'base'>) {
    const digest = createHash('sha256').update(base).digest();
    this.#bridge = `hs${digest.toString('hex', 0, 5)}`;
    // Half of 10.0.0.0/8 (RFC 1918): sites and container runtimes like the lower one.
    this.#subnet = `10.${128 + (digest[5]! % 128)}.${digest[6]!}`;
  }

  /** Of the login node, as the nodes reach it. */
  get login_address(): string {
    return `${this.#subnet}.254`;
  }

  /** Of all of them, as `network.prefer` of a site config takes it. */
  get network(): string {
    return `${this.#subnet}.0/24`;
  }

  address(node: string): string {
    return `${this.#subnet}.${1 + clusterNodeNames.indexOf(node)}`;
  }

  make(): void {
    this.remove();
    ip('link', 'add', this.#bridge, 'type', 'bridge');
    ip('addr', 'add', `${this.login_address}/24`, 'dev', this.#bridge);
    ip('link', 'set', this.#bridge, 'up');
    for (const node of clusterNodeNames) {
      const name = this.#namespace(node);
      const cable = this.#cable(node);
      ip('netns', 'add', name);
      ip('link', 'add', cable, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
      ip('link', 'set', cable, 'master', this.#bridge, 'up');
      ip('-n', name, 'addr', 'add', `${this.address(node)}/24`, 'dev', 'eth0');
      for (const device of ['lo', 'eth0']) ip('-n', name, 'link', 'set', device, 'up');
      // The login node has other addresses too, which it may be known by.
      ip('-n', name, 'route', 'add', 'default', 'via', this.login_address);
    }
  }

  /** Does nothing where there is none. Processes that still run there keep what they have. */
  remove(): void {
    for (const node of clusterNodeNames) {
      // A namespace goes some time after its name, and what is in it with it: the cable's name would be taken.
      if (existsSync(`/sys/class/net/${this.#cable(node)}`)) ip('link', 'del', this.#cable(node));
      if (existsSync(`/run/netns/${this.#namespace(node)}`)) ip('netns', 'del', this.#namespace(node));
    }
    if (existsSync(`/sys/class/net/${this.#bridge}`)) ip('link', 'del', this.#bridge);
  }

  /** What to put before a command that is to run on the node: with a new, empty /tmp and /dev/shm. */
  prefix(node: string): string[] {
    const mount = (path: string): string =>
      `mount -t tmpfs -o mode=1777,size=${tmpfs_size} tmpfs ${path} && `;
    return [
      ...['nsenter', `--net=/run/netns/${this.#namespace(node)}`],
      ...['unshare', '--mount', '--propagation', 'slave'],
      ...['sh', '-c', `${mount('/tmp')}${mount('/dev/shm')}exec "$@"`, 'sh'],
    ];
  }

  /**
   * As when its power fails: its cable is dead first, so that nobody is told of what ends on it, and then all that runs
   * there is gone.
   */
  lose(node: string): void {
    ip('link', 'set', this.#cable(node), 'down');
    const pids = execFileSync('ip', ['netns', 'pids', this.#namespace(node)], { encoding: 'utf8' });
    for (const pid of pids.split('\n').filter(Boolean)) process.kill(Number(pid), 'SIGKILL');
  }

  /** As when its cable is pulled: what runs there runs on, and reaches nobody. */
  cut(node: string): void {
    ip('link', 'set', this.#cable(node), 'down');
  }

  /** Reaches others again; what runs there, the caller starts. */
  mend(node: string): void {
    ip('link', 'set', this.#cable(node), 'up');
  }

  #cable(node: string): string {
    return `${this.#bridge}-${clusterNodeNames.indexOf(node)}`;
  }

  #namespace(node: string): string {
    return `${this.#bridge}-${node}`;
  }
}

function ip(...argv: string[]): void {
  execFileSync('ip', argv, { stdio: ['ignore', 'ignore', 'pipe'] });
}
