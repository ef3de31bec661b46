import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { EngineLimits, ModelLoad } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { ServedModel } from '../../spec/session-record.ts';
import {
  type AdapterContext,
  checkEngineOptions,
  type EngineAdapter,
  type EngineLoad,
  type EngineProbe,
  type SleepPaths,
} from '../adapters/adapter.ts';
import { type FatalSign, fatalSign } from '../adapters/fatal.ts';
import { adapterOf } from '../adapters/index.ts';
import { inPrivateNetwork, withPrivateNetwork } from '../private-network/plan.ts';
import { Child, type ChildEnd } from './child.ts';
import { emptyLoad } from './device-worker-process.ts';
import { EngineContainer } from './engine-container.ts';
import { EngineHealth } from './engine-health.ts';
import { readEngineLimits } from './engine-limits.ts';
import { probeEngine } from './engine-probe.ts';
import { fetchText } from './engine-request.ts';
import { EngineSleep } from './engine-sleep.ts';
import { engineEnvironment, freePort, prepareFiles, variablesOf } from './engine-start.ts';
import { checkModelPath, pendingModel } from './model-path.ts';
import { whyEnded } from './rank-rendezvous.ts';
import type { ProcessContext, ProcessEnd, ServingProcess, Upstream } from './serving-process.ts';

/**
 * How long an engine may take to become ready, s. Lower: hangs are found sooner; higher: huge models on slow disks
 * load.
 */
const ready_s_default = 3600;
const ready_poll_ms = 250;
const stop_grace_ms = 5000;
/** As for native models (`sharing.keep_alive_s` of the site config). */
const keep_alive_s_default = 300;
/** After SIGKILL; a process that hangs in the kernel is not waited for any longer. */
const kill_ms = 2000;
/** Exit codes by which a shell says that a program could not be started. */
const not_executable = 126;
const not_found = 127;

type EngineEnd = ProcessEnd & { error: HpcserveError };
const never = new Promise<never>(() => undefined);

/** One start of a wrapped engine. */
export class EngineProcess implements ServingProcess {
  readonly engine: string;
  readonly log_file: string;
  readonly models: ServedModel[];
  readonly ended: Promise<ProcessEnd>;
  /** A wrapped engine serves one model: its failure is that of the process. */
  readonly model_errors: ReadonlyMap<string, HpcserveError> = new Map();
  engine_version: string | undefined;
  upstream: Upstream | undefined;
  limits: EngineLimits | undefined;
  readonly #context: ProcessContext;
  readonly #unit: UnitSpec;
  readonly #adapter: EngineAdapter;
  readonly #stopped = new AbortController();
  #child: Child | undefined;
  #load: EngineLoad = {};
  /** As its command line begins, the site's prefix included. */
  #program: string | undefined;
  #sleep: EngineSleep | undefined;
  #has_served = false;
  #hangs = false;

  constructor(context: ProcessContext) {
    this.#context = context;
    this.#unit = context.group.units[0]!;
    if (this.#unit.engine === 'native') throw new TypeError('the native engine runs in a device worker');
    this.#adapter = adapterOf(this.#unit.engine);
    this.engine = this.#unit.engine;
    this.log_file = context.log_file;
    this.models = [pendingModel(this.#unit)];
    this.ended = this.#run();
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  loads(in_flight: number): ModelLoad[] {
    const { running, waiting, kv_tokens_total, kv_tokens_used } = this.#load;
    const empty = emptyLoad(this.#unit);
    const max_sequences = this.limits?.max_sequences ?? empty.max_sequences;
    return [
      {
        ...empty,
        max_sequences,
        state: this.models[0]!.state,
        running: running ?? Math.min(in_flight, max_sequences),
        waiting: waiting ?? Math.max(0, in_flight - max_sequences),
        kv_tokens_total: kv_tokens_total ?? this.limits?.kv_tokens ?? empty.kv_tokens_total,
        kv_tokens_used: kv_tokens_used ?? 0,
      },
    ];
  }

  wake(): Promise<void> | undefined {
    return this.#sleep?.wake();
  }

  drain(): void {
    if (this.models[0]!.state === 'serving') this.#update({ state: 'draining' });
  }

  async stop(grace_ms: number): Promise<void> {
    this.#stopped.abort();
    await this.#child?.stop(grace_ms);
    await this.ended;
  }

  async #run(): Promise<ProcessEnd> {
    const watching = new AbortController();
    const end = await this.#runOnce(AbortSignal.any([watching.signal, this.#stopped.signal]));
    watching.abort();
    const { place, log } = this.#context;
    if (place === undefined) return end;
    await place.board
      .tell(0, { phase: 'ended', because: whyEnded(end) })
      .catch((error: unknown) => log.error({ error: String(error) }, 'the end was not told'));
    // Its other ranks end with it, and their agents: another job takes its place.
    return { ...end, restartable: false };
  }

  async #runOnce(signal: AbortSignal): Promise<ProcessEnd> {
    try {
      checkModelPath(this.#unit);
      const { child, upstream, key, sleep } = await this.#start();
      const lost = this.#untilRankLost(signal);
      const reached = await Promise.race([this.#becomeReady(child, upstream), lost]);
      if (typeof reached === 'object') return this.#endWith(child, reached);
      if (reached === 'ready') {
        this.#has_served = true;
        this.#sleep = sleep && this.#sleeping(sleep, upstream, signal);
        this.upstream = upstream;
        this.#update({ state: 'serving' });
        this.#learnLimits(upstream).catch((error: unknown) => this.#context.log.error(error));
        this.#followLoad(child, upstream).catch((error: unknown) => this.#context.log.error(error));
      }
      const hung = reached === 'ready' ? this.#untilHung(child, upstream) : never;
      const end = await Promise.race([child.ended, hung, lost.then((whole) => ({ whole }))]);
      if ('whole' in end) return this.#endWith(child, end.whole);
      this.upstream = undefined;
      if (this.#stopped.signal.aborted) return { restartable: false };
      // Where it was killed for hanging, its end is no news.
      return this.#hangs || 'error' in end ? await hung : this.#exited(end, key);
    } catch (error) {
      if (this.#stopped.signal.aborted) return { restartable: false };
      // It would live on with its devices.
      await this.#child?.stop(stop_grace_ms);
      return { error: HpcserveError.from(error), restartable: false };
    }
  }

  /** What it chose itself is what status and gateways are told from then on. */
  async #learnLimits(upstream: Upstream): Promise<void> {
    const { log } = this.#context;
    this.limits = await readEngineLimits(this.#adapter, upstream, this.log_file, log);
    if (Object.keys(this.limits).length > 0)
      log.info({ unit: this.#unit.unit, ...this.limits }, 'engine limits');
    const { context_tokens } = this.limits;
    this.#update(context_tokens === undefined ? {} : { context_tokens });
    this.#context.onFullness();
  }

  #sleeping(paths: SleepPaths, upstream: Upstream, signal: AbortSignal): EngineSleep {
    const { sharing, traffic, log } = this.#context;
    const after_ms = 1000 * (sharing?.keep_alive_s ?? keep_alive_s_default);
    const sleep = new EngineSleep({ paths, after_ms, upstream, traffic, unit: this.#unit.unit, log });
    void sleep.watch(signal);
    return sleep;
  }

  async #start(): Promise<{ child: Child; upstream: Upstream; key: string; sleep?: SleepPaths }> {
    const { group, engine_prefix, runtime_folder } = this.#context;
    const container = new EngineContainer(engine_prefix, this.#unit, runtime_folder);
    const around = engineEnvironment(this.#unit, this.#context);
    const environment = { ...around, ...container.environment(around) };
    this.#update({ state: 'loading' });
    await container.check(environment, this.#stopped.signal, this.#context.log);
    const probed = await this.#probe(environment, []);
    this.engine_version = probed?.version;
    const apart = await this.#runsApart(environment, probed);
    const key = randomBytes(32).toString('hex');
    const own = this.#adapter.commandLine(this.#unit, {
      runtime_folder,
      port: await freePort('127.0.0.1'),
      key,
      ...(await this.#meet(key)),
      engine_prefix: container.prefix,
      ...(probed === undefined ? {} : { probed }),
      emulated: group.devices.some((device) => device.description.emulated !== undefined),
      devices: group.devices,
      cores: group.cores,
    });
    for (const notice of own.notices ?? []) this.#context.log.warn({ unit: this.#unit.unit }, notice);
    if (probed) checkEngineOptions(this.#unit, probed, own.argv.slice(container.prefix.length));
    this.#program = own.argv[0];
    const names = [...Object.keys(own.env), ...variablesOf(this.#unit, this.#context)];
    const inside = { ...own, argv: container.withVariables(own.argv, names) };
    const line = apart ? withPrivateNetwork(inside, runtime_folder) : inside;
    this.#stopped.signal.throwIfAborted();
    prepareFiles(line);
    const child = new Child({
      argv: line.argv,
      env: { ...environment, ...line.env },
      ...(line.cwd === undefined ? {} : { cwd: line.cwd }),
      log_file: this.log_file,
      guard: this.#context.guard,
      secrets: [key],
      cores: group.cores,
      memory_limit_bytes: this.#context.memory_limit_bytes,
    });
    this.#child = child;
    const { cores } = group;
    this.#context.log.info(
      { unit: this.#unit.unit, argv: line.argv, pid: child.pid, cores },
      'engine started',
    );
    if (child.affinity_error !== undefined)
      this.#context.log.warn({ reason: child.affinity_error }, 'the engine is not kept to its cores');
    return { child, upstream: { ...line.listen, key }, key, ...(line.sleep && { sleep: line.sleep }) };
  }

  /** Where it runs on several nodes: tells the others where to find it, and with which key. */
  async #meet(key: string): Promise<Pick<AdapterContext, 'place'>> {
    const { place } = this.#context;
    if (place === undefined) return {};
    const { board, nodes, address } = place;
    const leader = { address, port: await freePort(address, place.port_range) };
    await board.tell(0, { phase: 'up', meeting: { ...leader, key, node: place.node } });
    return { place: { rank: 0, nodes, own_address: address, leader } };
  }

  async #endWith(child: Child, end: EngineEnd): Promise<ProcessEnd> {
    this.upstream = undefined;
    await child.stop(stop_grace_ms);
    return this.#stopped.signal.aborted ? { restartable: false } : end;
  }

  /** Resolves where a rank on another node ended: then all of it ends. */
  async #untilRankLost(signal: AbortSignal): Promise<EngineEnd> {
    const { place } = this.#context;
    if (place === undefined) return never;
    const { board, nodes } = place;
    const others = Array.from({ length: nodes - 1 }, (_, index) => index + 1);
    const gone = (rank: number): Promise<EngineEnd> =>
      board
        .until(rank, (notice) => (notice.phase === 'ended' ? notice.because : undefined), signal)
        .then((because) => ({
          restartable: false,
          error: new HpcserveError('E_AGENT_PART_LOST', {
            what: `the replica ${this.#unit.unit} on ${nodes} nodes ended`,
            because: `its part ${rank + 1} of ${nodes} ended: ${because}`,
            details: { log_file: this.log_file, rank },
          }),
        }));
    try {
      return await Promise.race(others.map(gone));
    } catch (error) {
      if (signal.aborted) return never;
      throw error;
    }
  }

  /**
   * Whether it is run in a network namespace of its own: where it would answer some of its paths to anybody on the
   * node. That its runtime (a container, say) starts in one is seen by asking it there for its version.
   */
  async #runsApart(environment: NodeJS.ProcessEnv, probed: EngineProbe | undefined): Promise<boolean> {
    const { place, log } = this.#context;
    const { open_paths, name } = this.#adapter;
    if (open_paths === undefined || probed?.unix_socket) return false;
    const why =
      place !== undefined
        ? 'its parts on other nodes have to reach it'
        : this.#unit.model.remote_media.domains.length > 0
          ? 'it is to fetch media from other hosts (remote_media)'
          : (await this.#probe(environment, inPrivateNetwork)) === undefined
            ? 'the node permits no user namespaces, or its runtime does not start in one'
            : undefined;
    if (why === undefined) return true;
    log.warn(
      { unit: this.#unit.unit, because: why },
      `${name} listens on a port of the node, where anybody on it may ask for ${open_paths.join(', ')} without a key`,
    );
    return false;
  }

  /**
   * What the installed engine can do; undefined where it does not say, and the safest form is used.
   * @param within words to put before the commands
   */
  async #probe(environment: NodeJS.ProcessEnv, within: readonly string[]): Promise<EngineProbe | undefined> {
    const { engine_prefix } = this.#context;
    const { signal } = this.#stopped;
    try {
      return await probeEngine(this.#adapter, { engine_prefix, environment, within, signal });
    } catch (error) {
      this.#context.log.warn(
        { unit: this.#unit.unit, reason: (error as Error).message.slice(0, 500) },
        `${this.engine} did not answer what version it is${within.length > 0 ? ' in a network of its own' : ''}`,
      );
      return undefined;
    }
  }

  /** Asks until the engine answers 2xx, ends, or has used up its time. */
  async #becomeReady(child: Child, upstream: Upstream): Promise<'ready' | 'ended'> {
    const ready_s = Number(this.#context.environment.HPCSERVE_ENGINE_READY_S ?? ready_s_default);
    const deadline_ms = performance.now() + ready_s * 1000;
    let last = 'it has not answered yet';
    while (child.alive) {
      try {
        const { status } = await fetchText(upstream, this.#adapter.readiness_path, 5000);
        if (status >= 200 && status < 300) return 'ready';
        last = `${this.#adapter.readiness_path} answers ${status}`;
      } catch (error) {
        if (error instanceof HpcserveError) {
          await child.stop(stop_grace_ms);
          throw error;
        }
        last = (error as Error).message; // refused until it listens
      }
      if (performance.now() > deadline_ms) {
        await child.stop(stop_grace_ms);
        throw new HpcserveError('E_AGENT_ENGINE_READY', {
          what: `${this.engine} did not serve ${this.#unit.model.name} within ${ready_s} s`,
          because: last,
          details: { log_file: this.log_file },
        });
      }
      await Promise.race([child.ended, delay(ready_poll_ms)]);
    }
    return 'ended';
  }

  async #followLoad(child: Child, upstream: Upstream): Promise<void> {
    const { metrics_path } = this.#adapter;
    if (metrics_path === undefined || !this.#adapter.parseMetrics) return;
    while (child.alive) {
      try {
        const { status, text } = await fetchText(upstream, metrics_path, 2000);
        this.#load = status === 200 ? this.#adapter.parseMetrics(text, this.#unit) : {};
      } catch {
        this.#load = {}; // then the agent's own count of requests is reported
      }
      await Promise.race([
        child.ended,
        delay(Math.max(500, this.#context.heartbeat_ms), undefined, { ref: false }),
      ]);
    }
  }

  /**
   * Resolves where the engine lives and does not work. It is killed; one that hangs in the kernel may not end by that.
   */
  async #untilHung(child: Child, upstream: Upstream): Promise<EngineEnd> {
    const { readiness_path } = this.#adapter;
    const health = new EngineHealth(this.#unit.model.timeouts);
    for (;;) {
      await delay(health.interval_ms, undefined, { ref: false });
      const failure = await checkHealth(upstream, readiness_path, health.timeout_ms);
      if (!child.alive || this.#stopped.signal.aborted) return never;
      const { in_flight, streams, answer_bytes } = this.#context.traffic;
      const { activity } = this.#load;
      const why = health.look({
        in_flight,
        streams,
        answer_bytes,
        ...(failure === undefined ? {} : { failure }),
        ...(activity === undefined ? {} : { activity }),
      });
      if (why !== undefined) return this.#hung(child, why);
    }
  }

  async #hung(child: Child, why: string): Promise<EngineEnd> {
    this.#hangs = true;
    child.kill();
    await Promise.race([child.ended, delay(kill_ms, undefined, { ref: false })]);
    const tail = child.tail();
    const sign = fatalSign(tail);
    const error = new HpcserveError('E_AGENT_ENGINE_HANG', {
      what: `${this.engine} hangs and was killed: it served ${this.#unit.model.name}`,
      because: [why, ...(sign ? [`${sign.what}: ${sign.line}`] : [])],
      details: { log_file: this.log_file, pid: this.pid },
    });
    return { error, restartable: false, fatal: 'device', tail };
  }

  #exited(end: ChildEnd, key: string): EngineEnd {
    const sign = end.orderly ? undefined : fatalSign(end.tail);
    const fatal = sign?.scope ?? (end.out_of_memory ? 'process' : undefined);
    return {
      error: this.#exitError(end, key, sign),
      restartable: this.#has_served && fatal === undefined,
      orderly: end.orderly,
      ...(fatal === undefined ? {} : { fatal }),
      exit_code: end.code,
      signal: end.signal,
      tail: end.tail,
    };
  }

  #update(change: Partial<ServedModel>): void {
    this.models[0] = { ...this.models[0]!, ...change };
    this.#context.onChange();
  }

  #exitError(end: ChildEnd, key: string, sign: FatalSign | undefined): HpcserveError {
    const program = this.#program ?? this.engine;
    const lines = end.last_lines.map((text) => text.replaceAll(key, '[key]'));
    const details = { log_file: this.log_file, exit_code: end.code, signal: end.signal };
    if (!this.#has_served && (end.code === not_found || end.code === not_executable)) {
      return new HpcserveError('E_AGENT_ENGINE_START', {
        what: `${program} could not be started for ${this.#unit.model.name}`,
        because: lines.length > 0 ? lines : `it ${end.words}`,
        details,
      });
    }
    if (!this.#has_served && sign?.option)
      return new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${this.engine}${this.engine_version === undefined ? '' : ` ${this.engine_version}`} does not start as ${this.#unit.model.name} asks it to`,
        because: [sign.line.replaceAll(key, '[key]')],
        try: 'compare engine_args of model.yaml with what this version takes (its --help), or use the version they are for',
        details,
      });
    return new HpcserveError('E_AGENT_ENGINE_EXIT', {
      what: this.#has_served
        ? `${this.engine} ended while it served ${this.#unit.model.name}`
        : `${this.engine} ended before it served ${this.#unit.model.name}`,
      because: [`it ${end.words}`, ...(sign ? [`${sign.what}: ${sign.line}`] : []), ...lines],
      details,
    });
  }
}

/** Why an engine is not healthy; undefined where it is. */
async function checkHealth(
  upstream: Upstream,
  path: string,
  timeout_ms: number,
): Promise<string | undefined> {
  try {
    const { status } = await fetchText(upstream, path, timeout_ms);
    return status >= 200 && status < 300 ? undefined : `${path} answers ${status}`;
  } catch (error) {
    // Nothing was sent, so nothing is known of the engine: what others do on the node must not end it.
    if (error instanceof HpcserveError && error.code === 'E_AGENT_ENGINE_PORT') return undefined;
    const { name, message } = error as Error;
    return name === 'TimeoutError' || name === 'AbortError'
      ? `${path} is not answered within ${timeout_ms / 1000} s`
      : `${path}: ${message}`;
  }
}
