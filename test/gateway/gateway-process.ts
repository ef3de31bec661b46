import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../../spec/state-layout.ts';
import { until } from './support.ts';

/** A gateway as the process it is: the compiled program, with a config file in its folder. */
export class GatewayProcess {
  readonly child: ChildProcess;
  /** Its exit code; null where a signal ended it. */
  readonly exit: Promise<number | null>;
  readonly #folder: string;
  stdout = '';
  stderr = '';

  constructor(config: GatewayConfig) {
    this.#folder = config.gateway_folder;
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    const file = join(this.#folder, gatewayFiles.config);
    writeFileSync(file, JSON.stringify(config));
    const child = spawn(process.execPath, [join(packageRoot, 'dist/gateway/main.js'), '--config', file]);
    child.stdout.on('data', (chunk: Buffer) => {
      this.stdout += chunk.toString();
    });
    child.stderr.on('data', (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
    this.exit = new Promise((resolve) => child.once('exit', resolve));
    this.child = child;
  }

  /** Where it answers, once it does. */
  async listening(): Promise<GatewayEndpoint> {
    let endpoint: GatewayEndpoint | undefined;
    await until(
      () => {
        if (this.#hasEnded) throw new Error(`the gateway ended with ${this.child.exitCode}: ${this.stderr}`);
        endpoint = readEndpoint(join(this.#folder, gatewayFiles.endpoint));
        return endpoint?.pid === this.child.pid;
      },
      'the gateway to listen',
      120_000,
    );
    return endpoint!;
  }

  /** Asks as the operator. */
  admin({ url }: GatewayEndpoint, path: string, init?: { method: string; body: unknown }): Promise<Response> {
    const token = readFileSync(join(this.#folder, gatewayFiles.admin_token), 'utf8').trim();
    const authorization = `Bearer ${token}`;
    return fetch(url + path, {
      headers: { authorization, 'content-type': 'application/json' },
      ...(init && { method: init.method, body: JSON.stringify(init.body) }),
    });
  }

  async newKey(endpoint: GatewayEndpoint, settings?: KeySettings): Promise<{ id: string; key: string }> {
    const body = { name: 'tester', settings };
    const answer = await this.admin(endpoint, '/hpcserve/v1/keys', { method: 'POST', body });
    if (answer.status !== 201) throw new Error(`no key was made: ${await answer.text()}`);
    return (await answer.json()) as { id: string; key: string };
  }

  async end(signal: NodeJS.Signals): Promise<void> {
    if (!this.#hasEnded) this.child.kill(signal);
    await this.exit;
  }

  get #hasEnded(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null;
  }
}

function readEndpoint(path: string): GatewayEndpoint | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as GatewayEndpoint;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}
