import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';

/** Counts the hosts of this process: two suites must not meet under one name. */
let made = 0;

/** What is lacking to make them; empty where nothing is. */
export function lackingForNamespaces(): string {
  if (process.getuid?.() !== 0) return 'root';
  const name = nextName();
  const probe = spawnSync('ip', ['netns', 'add', name], { encoding: 'utf8' });
  if (probe.error) return 'ip (iproute2)';
  if (probe.status !== 0) return `network namespaces (${probe.stderr.trim()})`;
  const cable = spawnSync('ip', ['-n', name, 'link', 'add', 'probe', 'type', 'veth'], { encoding: 'utf8' });
  ip('netns', 'del', name);
  return cable.status === 0 ? '' : `virtual cables (${cable.stderr.trim()})`;
}

/** Hosts with networks of their own on this machine: Linux network namespaces, with cables where a test lays them. */
export class NetworkHost implements Disposable {
  readonly name = nextName();
  readonly #children = new Set<ChildProcess>();

  constructor() {
    ip('netns', 'add', this.name);
    this.#ip('link', 'set', 'lo', 'up');
    // It passes on what others send to each other only where a test's process does so.
    for (const kind of ['ipv4.ip_forward', 'ipv6.conf.all.forwarding'])
      execFileSync('ip', ['netns', 'exec', this.name, 'sysctl', '-qw', `net.${kind}=0`]);
  }

  /** What to put before a command that is to run here. */
  get prefix(): string[] {
    return ['ip', 'netns', 'exec', this.name];
  }

  /**
   * Lays a cable to another host.
   * @param subnet the first three bytes of its addresses: this end gets `.1`, the other `.2`
   */
  cable(other: NetworkHost, subnet: string): void {
    const device = `c${subnet.replaceAll('.', '-')}`;
    this.#ip('link', 'add', device, 'type', 'veth', 'peer', 'name', device, 'netns', other.name);
    for (const [host, end] of [
      [this, 1],
      [other, 2],
    ] as const) {
      host.#ip('addr', 'add', `${subnet}.${end}/24`, 'dev', device);
      host.#ip('link', 'set', device, 'up');
    }
  }

  /** Everything else goes there, as to the router of a site. */
  routeThrough(address: string): void {
    this.#ip('route', 'add', 'default', 'via', address);
  }

  /** Runs a program of Node here until the host is disposed of. */
  node(argv: readonly string[], environment: Record<string, string> = {}): ChildProcess {
    const [command, ...rest] = [...this.prefix, process.execPath, ...argv];
    const child = spawn(command!, rest, {
      env: { PATH: process.env.PATH, ...environment },
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    this.#children.add(child);
    child.once('exit', () => this.#children.delete(child));
    return child;
  }

  [Symbol.dispose](): void {
    for (const child of this.#children) child.kill('SIGKILL');
    ip('netns', 'del', this.name);
  }

  #ip(...argv: string[]): void {
    ip('-n', this.name, ...argv);
  }
}

function nextName(): string {
  return `hpcserve-test-${process.pid}-${++made}`;
}

function ip(...argv: string[]): void {
  execFileSync('ip', argv, { stdio: ['ignore', 'ignore', 'pipe'] });
}
