/** Starts real node agents from the built files, and speaks to them as a gateway does. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Dispatcher, Pool } from 'undici';
import { packageRoot } from '../../host/package-root.ts';
import { LocalSession, pinnedConnector, RendezvousRegistry, sessionOrigin } from '../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../mesh/network-key.ts';
import { nativeFolderVariable } from '../../native/libraries.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import { type ModelSpec, modelSchema, stageBounds } from '../../spec/model-yaml.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import { providerKeyFileOf, type TestProvider, testProvider } from '../mesh/providers.ts';
import { eventually, metadata, scratchFolder } from '../mesh/support.ts';
import { test_device } from './engine/test-backend.ts';

const providerName = 'someone@local';
/** Caches of all agents that tests start: what one measured of a model, or hashed, serves the next. */
export const cache_home = join(tmpdir(), `hpcserve-test-cache-${process.getuid?.() ?? 0}`);
const agentModule = join(packageRoot, 'dist/agent/main.js');
export const fixtureEngine = join(packageRoot, 'test/agent/fixture-engine.mjs');

export function unitOf(model: Partial<ModelSpec> & { name: string }, unit: Partial<UnitSpec> = {}): UnitSpec {
  const spec = modelSchema.parse({ source: '/models/x', ...model });
  const tensor = spec.parallel.tensor === 'auto' ? 1 : spec.parallel.tensor;
  return {
    unit: `${model.name}-0`,
    node_index: 0,
    engine: 'command',
    model_path: fixtureEngine,
    model: spec,
    device_kind: 'cpu',
    device_count: tensor * stageBounds(spec).stages_max,
    tensor,
    pipeline: stageBounds(spec).stages_min,
    first_device: 0,
    threads: 1,
    context_tokens: 256,
    kv_tokens: 1024,
    weight_bytes: 1000,
    ...unit,
  };
}

/** Of the pool that a native unit has on a test device. */
const device_unit_bytes = 2 ** 27;

/** Variables that the driver of a test device and ggml's backend for it read. */
const ofDevices = /^(GGML|VK|MESA|LP|CUDA|NVIDIA|HIP|ROCR)_|^LD_LIBRARY_PATH$/;

/**
 * Native units of CPUs on the device that tests are to compute on, where somebody names one. Each agent keeps the locks
 * of its devices apart: it has a device of its own, as on a node of its own.
 */
function onTestDevice(
  units: UnitSpec[],
  launch_folder: string,
): { units: UnitSpec[]; launch: Partial<LaunchSpec>; environment: Record<string, string | undefined> } {
  if (test_device === undefined) return { units, launch: {}, environment: {} };
  const native_library_dir = process.env[nativeFolderVariable]!;
  const memory = { device_bytes: device_unit_bytes, kv_bytes: 2 ** 20, share: 0.1 };
  const own = Object.entries(process.env).filter(([name]) => ofDevices.test(name));
  return {
    units: units.map((unit) =>
      unit.engine === 'native' && unit.device_kind === 'cpu' ? { memory, ...unit, device_kind: 'gpu' } : unit,
    ),
    launch: { native_library_dir },
    environment: { ...Object.fromEntries(own), HPCSERVE_DEVICE_LOCKS: launch_folder },
  };
}

/** The fixture engine as a unit, on a socket unless told otherwise. */
export function fixtureUnit(
  name: string,
  flags: string[] = [],
  unit: Partial<UnitSpec> = {},
  where = '{socket}',
) {
  return unitOf({ name, command: [process.execPath, fixtureEngine, where, ...flags] }, unit);
}

/** A mesh of its own with a gateway's session, the agents that were started in it, and a scratch folder for both. */
export class Site implements AsyncDisposable {
  readonly folder: string;
  readonly mesh_folder: string;
  readonly registry: RendezvousRegistry;
  /** Whose the gateway and the agents are. */
  readonly provider: TestProvider;
  readonly gateway: LocalSession;
  readonly #scratch: AsyncDisposable;
  readonly #agents: RunningAgent[] = [];
  readonly #pools: Pool[] = [];

  private constructor(
    scratch: AsyncDisposable & { path: string },
    registry: RendezvousRegistry,
    gateway: LocalSession,
    provider: TestProvider,
  ) {
    this.provider = provider;
    this.#scratch = scratch;
    this.folder = scratch.path;
    this.mesh_folder = join(scratch.path, 'mesh');
    this.registry = registry;
    this.gateway = gateway;
  }

  /** @param networkKey of another site, to be in one mesh with it */
  static async open(networkKey?: Uint8Array): Promise<Site> {
    const scratch = await scratchFolder();
    const mesh_folder = join(scratch.path, 'mesh');
    if (networkKey) {
      await mkdir(mesh_folder, { mode: 0o700 });
      await writeFile(join(mesh_folder, 'network.key'), networkKey, { mode: 0o600 });
    }
    await loadOrCreateNetworkKey(mesh_folder);
    const registry = await RendezvousRegistry.open(mesh_folder, {
      create: true,
      poll_ms: 50,
      refresh_min_ms: 10,
    });
    const provider = testProvider(scratch.path, providerName);
    const gateway = await LocalSession.join(
      registry,
      { ...metadata, role: 'gateway', addresses: [] },
      undefined,
      provider.gateway,
    );
    return new Site(scratch, registry, gateway, provider);
  }

  get provider_key_file(): string {
    return providerKeyFileOf(this.folder, providerName);
  }

  async start(
    units: UnitSpec[],
    launch: Partial<LaunchSpec> = {},
    environment: Record<string, string | undefined> = {},
    prefix: readonly string[] = [],
  ): Promise<RunningAgent> {
    const launch_id = randomBytes(8).toString('hex');
    const launch_folder = join(this.folder, launch_id);
    const device = onTestDevice(units, launch_folder);
    const runtime_folder = join(this.folder, 'run');
    await mkdir(launch_folder);
    await mkdir(runtime_folder, { recursive: true });
    const spec: LaunchSpec = {
      format: 1,
      launch_id,
      deployment: 'test',
      site: 'local',
      provider: providerName,
      tier: 'stable',
      node_kind: 'cpu',
      node_count: 1,
      units: device.units,
      mesh_folder: this.mesh_folder,
      launch_folder,
      runtime_folder,
      engine_prefix: [],
      heartbeat_ms: 100,
      ...device.launch,
      ...launch,
    };
    const launch_file = join(launch_folder, 'launch.json');
    await writeFile(launch_file, JSON.stringify(spec));
    const delegation = this.provider.launch(launch_id).toText();
    await writeFile(join(spec.launch_folder, launchFiles.delegation), delegation, { mode: 0o600 });
    const agent = new RunningAgent(spec, launch_file, { ...device.environment, ...environment }, prefix);
    this.#agents.push(agent);
    return agent;
  }

  /** The session that serves a model (or whichever record `accept` takes), once the registry knows it. */
  async session(accept: (record: SessionRecord) => boolean, deadline_ms?: number): Promise<SessionRecord> {
    return eventually(
      () => {
        const ended = this.#agents.find((agent) => agent.process.exitCode !== null);
        const record = this.registry.snapshot().find(accept);
        if (!record && ended) throw new Error(`an agent ended: ${ended.stderr}`);
        return record;
      },
      'a session',
      deadline_ms,
    );
  }

  serving(model: string, deadline_ms?: number): Promise<SessionRecord> {
    return this.session((record) => {
      const { models } = record.metadata;
      return (
        record.lifecycle === 'SERVING' && models.some((one) => one.name === model && one.state === 'serving')
      );
    }, deadline_ms);
  }

  pool(record: SessionRecord): Pool {
    const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, this.gateway.identity) });
    this.#pools.push(pool);
    return pool;
  }

  ask(
    record: SessionRecord,
    content: string,
    { signal, headers = {} }: { signal?: AbortSignal; headers?: Record<string, string> } = {},
  ): Promise<Dispatcher.ResponseData> {
    return this.pool(record).request({
      signal: signal ?? null,
      method: 'POST',
      path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json', authorization: 'Bearer of-the-client', ...headers },
      body: JSON.stringify({ model: 'm', stream: true, messages: [{ role: 'user', content }] }),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#pools.map((pool) => pool.destroy()));
    for (const agent of this.#agents) await agent.kill();
    await this.registry.close();
    await this.#scratch[Symbol.asyncDispose]();
  }
}

/** A node agent as the process it is, with what it wrote and how it ended. */
export class RunningAgent {
  readonly launch: LaunchSpec;
  readonly process: ChildProcess;
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  stderr = '';
  readonly #environment: Record<string, string | undefined>;
  readonly #launch_file: string;
  readonly #prefix: readonly string[];
  readonly #node_index: number;

  /** @param prefix what to run it with, such as `ip netns exec NAME` */
  constructor(
    launch: LaunchSpec,
    launch_file: string,
    environment: Record<string, string | undefined>,
    prefix: readonly string[] = [],
    node_index = 0,
  ) {
    this.launch = launch;
    this.#node_index = node_index;
    this.#prefix = prefix;
    this.#environment = environment;
    this.#launch_file = launch_file;
    const argv = [...prefix, process.execPath, agentModule, '--launch', launch_file, '--node', this.#node];
    argv.push('--node-index', String(node_index));
    this.process = spawn(argv[0]!, argv.slice(1), {
      env: {
        PATH: process.env.PATH,
        HPCSERVE_DRAIN_S: '5',
        XDG_CACHE_HOME: cache_home,
        ...environment,
      },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    this.process.stderr?.on('data', (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
    this.ended = new Promise((resolve) => {
      this.process.once('exit', (code, signal) => resolve({ code, signal }));
    });
  }

  /** Its nodes are counted as those of its pipeline where it is one of several jobs. */
  get #node(): string {
    return `n${(this.launch.part?.node_index ?? 0) + this.#node_index}`;
  }

  /** The same launch on another node of its job. */
  onNode(node_index: number): RunningAgent {
    return new RunningAgent(this.launch, this.#launch_file, this.#environment, this.#prefix, node_index);
  }

  /** The same launch once more, as Slurm does when it requeues a job. */
  again(): RunningAgent {
    return new RunningAgent(this.launch, this.#launch_file, this.#environment, this.#prefix);
  }

  async state(): Promise<AgentState | undefined> {
    try {
      return JSON.parse(
        await readFile(join(this.launch.launch_folder, `${this.#node}.state.json`), 'utf8'),
      ) as AgentState;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
  }

  stateWhere(
    accept: (state: AgentState) => boolean,
    what: string,
    deadline_ms?: number,
  ): Promise<AgentState> {
    return eventually(
      async () => {
        const state = await this.state();
        return state && accept(state) ? state : undefined;
      },
      what,
      deadline_ms,
    );
  }

  /** The process behind a session: an agent writes down its sessions a moment after it announces them. */
  async pidOf({ session_id }: Pick<SessionRecord, 'session_id'>): Promise<number> {
    const sessionIn = ({ sessions }: AgentState) => sessions.find((one) => one.session_id === session_id);
    const state = await this.stateWhere(
      (now) => sessionIn(now)?.pid !== undefined,
      `the process of session ${session_id} to be written down`,
    );
    return sessionIn(state)!.pid!;
  }

  async engineLog(unit: string): Promise<string[]> {
    const text = await readFile(join(this.launch.launch_folder, `${this.#node}.${unit}.log`), 'utf8');
    return text.split('\n').filter((line) => line !== '');
  }

  async kill(): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) this.process.kill('SIGKILL');
    await this.ended;
  }
}

export function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** The process of a session, whichever of these agents has it. */
export function pidOfSession(agents: RunningAgent[], session_id: string): Promise<number> {
  return eventually(async () => {
    const states = await Promise.all(agents.map((agent) => agent.state()));
    const sessions = states.flatMap((state) => state?.sessions ?? []);
    return sessions.find((session) => session.session_id === session_id)?.pid;
  }, `an agent to know the session ${session_id}`);
}
