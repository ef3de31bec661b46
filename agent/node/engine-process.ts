import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { ownMemoryOf, processTree } from '../../host/process-tree.ts';
import type { EngineLimits, ModelLoad } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { SessionModel } from '../../spec/session-record.ts';
import type { SleepReport, ToldSleep } from '../../spec/sleep-report.ts';
import type { TurnsReport } from '../../spec/turns-report.ts';
import {
  type AdapterContext,
  checkEngineOptions,
  type EngineAdapter,
  type EngineProbe,
  type SleepPaths,
} from '../adapters/adapter.ts';
import { adapterOf } from '../adapters/index.ts';
import type { BlockFeed } from '../kv-events/block-feed.ts';
import { followBlocks } from '../kv-events/follow-blocks.ts';
import { inPrivateNetwork, withPrivateNetwork } from '../private-network/plan.ts';
import { cacheFolder } from './cache-folder.ts';
import { Child } from './child.ts';
import type { TakenTurns } from './device-turns.ts';
import { emptyLoad } from './device-worker-process.ts';
import { EngineContainer } from './engine-container.ts';
import { type EndedEngine, type EngineEnd, exitedEngine, hungEngine } from './engine-end.ts';
import type { HealthVerdict } from './engine-health.ts';
import { readEngineLimits } from './engine-limits.ts';
import { engineRequests } from './engine-load.ts';
import { tryToProbe } from './engine-probe.ts';
import { EngineProgress } from './engine-progress.ts';
import { fetchText } from './engine-request.ts';
import { changeSleep, EngineSleep } from './engine-sleep.ts';
import { engineEnvironment, freePort, prepareFiles, variablesOf } from './engine-start.ts';
import { EngineWatch } from './engine-watch.ts';
import { LoadTimes } from './load-times.ts';
import { checkModelPath, oneLine, pendingModel } from './model-path.ts';
import { type Meeting, whyEnded } from './rank-rendezvous.ts';
import type { ProcessContext, ProcessEnd, ServingProcess, Upstream } from './serving-process.ts';
import type { Waking } from './waking.ts';

/**
 * How long an engine may take to become ready, s. Lower: hangs are found sooner; higher: huge models on slow disks
 * load.
 */
const ready_s_default = 3600;
const ready_poll_ms = 250;
const stop_grace_ms = 5000;
/** As for native models (`sharing.keep_alive_s` of the site config). */
const keep_alive_s_default = 300;

const never = new Promise<never>(() => undefined);

/** What lets requests wait for an engine that sleeps. */
interface Sleeper {
  wake(isCertain: boolean): Waking | undefined;
  told(): ToldSleep;
}

/** It hangs in the kernel, or in a driver: it has its devices still. */
const unended: ProcessEnd = { restartable: false, gone: Promise.resolve(false), fatal: 'process' };

/** One start of a wrapped engine. */
export class EngineProcess implements ServingProcess {
  readonly engine: string;
  readonly log_file: string;
  readonly models: SessionModel[];
  readonly ended: Promise<ProcessEnd>;
  /** A wrapped engine serves one model: its failure is that of the process. */
  readonly model_errors: ReadonlyMap<string, HpcserveError> = new Map();
  engine_version: string | undefined;
  upstream: Upstream | undefined;
  limits: EngineLimits | undefined;
  host_bytes: number | undefined;
  blocks: BlockFeed | undefined;
  readonly #context: ProcessContext;
  readonly #unit: UnitSpec;
  readonly #adapter: EngineAdapter;
  readonly #stopped = new AbortController();
  /** Its child was told to end and has not, not even by SIGKILL. */
  readonly #stuck = new AbortController();
  #child: Child | undefined;
  /** Ends what is no child of its process. */
  #endContainer: () => Promise<void> = async () => undefined;
  #watch: EngineWatch | undefined;
  readonly #began_ms = performance.now();
  readonly #load_times: LoadTimes;
  /** As its command line begins, the site's prefix included. */
  #program: string | undefined;
  #sleep: Sleeper | undefined;
  /** Of several engines on its device; see `DeviceTurns`. */
  #turns: TakenTurns | undefined;
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
    this.#load_times = new LoadTimes(cacheFolder(context.environment), context.group);
    this.ended = this.#run();
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  loads(in_flight: number): ModelLoad[] {
    const { kv_tokens_total, kv_tokens_used, prefix_queried_tokens, prefix_found_tokens, ...said } =
      this.#watch?.load ?? {};
    const empty = emptyLoad(this.#unit);
    const max_sequences = this.limits?.max_sequences ?? empty.max_sequences;
    const load: ModelLoad = {
      ...empty,
      max_sequences,
      state: this.models[0]!.state,
      ...engineRequests(said, this.#watch?.in_flight_then ?? in_flight, in_flight, max_sequences),
      kv_tokens_total: kv_tokens_total ?? this.limits?.kv_tokens ?? empty.kv_tokens_total,
      kv_tokens_used: kv_tokens_used ?? 0,
    };
    if (this.asleep) load.asleep = true;
    if (prefix_queried_tokens !== undefined && prefix_found_tokens !== undefined)
      load.prefix_cache = { queried_tokens: prefix_queried_tokens, found_tokens: prefix_found_tokens };
    return [load];
  }

  get asleep(): boolean | undefined {
    return this.#turns?.asleep;
  }

  get turns(): TurnsReport | undefined {
    return this.#turns?.report;
  }

  sleepReport(): SleepReport | undefined {
    if (!this.#sleep || !this.upstream) return undefined;
    const { group, traffic } = this.#context;
    const told = this.#sleep.told();
    const { name: model, slo } = this.#unit.model;
    const report: SleepReport = {
      model,
      engine: this.engine,
      device: `${this.#unit.device_kind} ${group.first_device}`,
      ...told,
      running: Math.max(0, traffic.in_flight - told.waiting),
    };
    if (Object.keys(slo).length > 0) report.slo = slo;
    return report;
  }

  wake(isCertain: boolean): Waking | undefined {
    return this.#sleep?.wake(isCertain);
  }

  drain(): void {
    const { state } = this.models[0]!;
    if (state === 'serving' || state === 'stalled') this.#update({ state: 'draining' });
  }

  async stop(grace_ms: number): Promise<void> {
    this.#stopped.abort();
    await this.#stopChild(grace_ms);
    await this.ended;
  }

  /** @returns whether it has ended */
  async #stopChild(grace_ms: number): Promise<boolean> {
    if (!this.#child || (await this.#child.stop(grace_ms))) return true;
    this.#stuck.abort();
    return false;
  }

  async #run(): Promise<ProcessEnd> {
    const watching = new AbortController();
    const end = await this.#runOnce(AbortSignal.any([watching.signal, this.#stopped.signal]));
    watching.abort();
    await this.#endContainer();
    const { place, log } = this.#context;
    if (place === undefined) return end;
    await place.board
      .tell(0, { phase: 'ended', because: whyEnded(end) })
      .catch((error: unknown) => log.error({ error: String(error) }, 'the end was not told'));
    // Its other ranks end with it, and their agents: another job takes its place.
    return { ...end, restartable: false };
  }

  async #runOnce(signal: AbortSignal): Promise<ProcessEnd> {
    let started = (): void => undefined;
    try {
      checkModelPath(this.#unit);
      const usual_ms = 1000 * (this.#load_times.read_s() ?? 0);
      started = (await this.#context.turns?.start(this.#stopped.signal, usual_ms)) ?? started;
      const { child, upstream, sleep, kv_events } = await this.#start();
      if (kv_events !== undefined) this.blocks = followBlocks(kv_events, signal, this.#context.log);
      const lost = this.#untilRankLost(signal);
      const stuck = once(this.#stuck.signal, 'abort').then(() => 'stuck' as const);
      const reached = await Promise.race([
        this.#followed(child, this.#becomeReady(child, upstream)),
        lost,
        stuck,
      ]);
      if (reached === 'stuck') return unended;
      if (typeof reached === 'object') return this.#endWith(reached);
      if (reached === 'ready') {
        this.#has_served = true;
        this.#sleep = sleep && this.#sleeping(sleep, upstream, signal);
        this.upstream = upstream;
        this.#serves();
        started();
        this.#learnLimits(child, upstream).catch((error: unknown) => this.#context.log.error(error));
        this.#watch = new EngineWatch({
          child,
          upstream,
          adapter: this.#adapter,
          unit: this.#unit,
          context: this.#context,
          onVerdict: (verdict) => this.#judged(verdict),
        });
      }
      const hung = this.#watch ? this.#untilHung(child, this.#watch, signal) : never;
      const end = await Promise.race([child.ended, hung, lost.then((whole) => ({ whole })), stuck]);
      if (end === 'stuck') return unended;
      if ('whole' in end) return this.#endWith(end.whole);
      this.upstream = undefined;
      if (this.#stopped.signal.aborted) return { restartable: false };
      // Where it was killed for hanging, its end is no news.
      return this.#hangs || 'error' in end
        ? await hung
        : exitedEngine(end, child.log.notable(), this.#ending());
    } catch (error) {
      // It would live on with its devices.
      const has_ended = await this.#stopChild(stop_grace_ms);
      if (this.#stopped.signal.aborted) return has_ended ? { restartable: false } : unended;
      const end = { error: HpcserveError.from(error), restartable: false };
      return has_ended ? end : { ...end, ...unended };
    } finally {
      this.#turns?.leave();
      started();
    }
  }

  /** What it chose itself and what it takes is what status, gateways and later plans are told from then on. */
  async #learnLimits({ pid }: Child, upstream: Upstream): Promise<void> {
    const { log } = this.#context;
    if (pid !== undefined) this.host_bytes = ownMemoryOf(await processTree(pid));
    this.limits = await readEngineLimits(this.#adapter, upstream, this.log_file, log);
    log.info({ unit: this.#unit.unit, ...this.limits, host_bytes: this.host_bytes }, 'engine limits');
    const { context_tokens } = this.limits;
    this.#update(context_tokens === undefined ? {} : { context_tokens });
    this.#context.onFullness();
  }

  /** Its progress is told meanwhile. */
  async #followed<T>(child: Child, ready: Promise<T>): Promise<T> {
    const loaded = new AbortController();
    const { weight_bytes } = this.#unit;
    const progress = new EngineProgress(child, this.#unit, this.#adapter.name, ({ phase, bytes_loaded }) => {
      const { phase: before, bytes_loaded: known } = this.models[0]!;
      if (loaded.signal.aborted || (phase === before && bytes_loaded === known)) return;
      const bytes_total = bytes_loaded === undefined ? undefined : weight_bytes;
      this.#update({ phase, bytes_loaded, bytes_total });
    });
    progress
      .follow(loaded.signal)
      .catch((error: unknown) =>
        this.#context.log.warn({ error: String(error) }, 'its progress is not seen'),
      );
    try {
      return await ready;
    } finally {
      loaded.abort();
    }
  }

  #serves(): void {
    const { log } = this.#context;
    const load_s = (performance.now() - this.#began_ms) / 1000;
    this.#update({
      state: 'serving',
      phase: undefined,
      bytes_loaded: undefined,
      bytes_total: undefined,
      loading_since_ms: undefined,
      usual_load_s: undefined,
    });
    log.info({ unit: this.#unit.unit, load_s: Math.round(10 * load_s) / 10 }, 'the engine serves');
    try {
      this.#load_times.write(load_s);
    } catch (error) {
      log.warn({ reason: (error as Error).message }, 'how long it loaded is not kept');
    }
  }

  #sleeping(paths: SleepPaths, upstream: Upstream, signal: AbortSignal): Sleeper {
    const { sharing, traffic, log, turns: onDevice } = this.#context;
    const { slo } = this.#unit.model;
    if (onDevice) {
      const turns = onDevice.join({
        unit: this.#unit.unit,
        slo: Object.keys(slo).length > 0 ? slo : undefined,
        times: traffic.times,
        in_flight: () => traffic.in_flight,
        sleep: () => changeSleep(upstream, paths, 'sleep'),
        wake: () => changeSleep(upstream, paths, 'wake'),
        onChange: () => {
          this.#context.onChange();
          this.#context.onFullness();
        },
      });
      this.#turns = turns;
      return { wake: (isCertain) => turns.enter(isCertain), told: () => turns.told() };
    }
    const after_ms = 1000 * (sharing?.keep_alive_s ?? keep_alive_s_default);
    const sleep = new EngineSleep({ paths, after_ms, upstream, traffic, unit: this.#unit.unit, log });
    void sleep.watch(signal);
    return sleep;
  }

  async #start(): Promise<{
    child: Child;
    upstream: Upstream;
    sleep: SleepPaths | undefined;
    kv_events: string | undefined;
  }> {
    const { group, engine_prefix, runtime_folder } = this.#context;
    const container = new EngineContainer(engine_prefix, this.#unit, runtime_folder);
    const around = engineEnvironment(this.#unit, this.#context);
    const environment = { ...around, ...container.environment(around) };
    this.#update({
      state: 'loading',
      phase: 'starting',
      loading_since_ms: Date.now(),
      usual_load_s: this.#load_times.read_s(),
    });
    await container.check(environment, this.#stopped.signal, this.#context.log);
    const probed = await this.#probe(environment, []);
    this.engine_version = probed?.version;
    const apart = await this.#runsApart(environment, probed);
    const key = randomBytes(32).toString('hex');
    const own = this.#adapter.commandLine(this.#unit, {
      runtime_folder,
      port: await freePort('127.0.0.1'),
      key,
      ...(await this.#meet(key, probed?.version)),
      engine_prefix: container.prefix,
      probed,
      emulated: group.devices.some((device) => device.description.emulated !== undefined),
      devices: group.devices,
      cores: group.cores,
    });
    for (const notice of own.notices ?? []) this.#context.log.warn({ unit: this.#unit.unit }, notice);
    if (probed) checkEngineOptions(this.#unit, probed, own.argv.slice(container.prefix.length));
    this.#program = own.argv[0];
    const names = [...Object.keys(own.env), ...variablesOf(this.#unit, this.#context)];
    const inside = { ...own, argv: container.started(own.argv, names, own.cwd) };
    const line = apart ? withPrivateNetwork(inside, runtime_folder) : inside;
    this.#stopped.signal.throwIfAborted();
    prepareFiles(line);
    container.detached?.register();
    this.#endContainer = async () => container.detached?.end(environment, this.#context.log);
    const child = new Child({
      argv: line.argv,
      detached: container.detached && (() => container.detached!.pid(environment)),
      env: { ...environment, ...line.env },
      cwd: line.cwd,
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
    return { child, upstream: { ...line.listen, key }, sleep: line.sleep, kv_events: line.kv_events };
  }

  /** Where it runs on several nodes: tells the others where to find it, and with which key. */
  async #meet(key: string, version: string | undefined): Promise<Pick<AdapterContext, 'place'>> {
    const { place } = this.#context;
    if (place === undefined) return {};
    const { board, nodes, address } = place;
    const leader = { address, port: await freePort(address, place.port_range) };
    const meeting: Meeting = { ...leader, key, node: place.node };
    if (version !== undefined) meeting.version = version;
    await board.tell(0, { phase: 'up', meeting });
    return { place: { rank: 0, nodes, own_address: address, leader } };
  }

  async #endWith(end: EngineEnd): Promise<ProcessEnd> {
    this.upstream = undefined;
    const has_ended = await this.#stopChild(stop_grace_ms);
    if (this.#stopped.signal.aborted) return has_ended ? { restartable: false } : unended;
    return has_ended ? end : { ...end, ...unended };
  }

  /** Resolves where a rank on another node ended: then all of it ends. */
  async #untilRankLost(signal: AbortSignal): Promise<EngineEnd> {
    const { place } = this.#context;
    if (place === undefined) return never;
    const { board, nodes } = place;
    const others = Array.from({ length: nodes - 1 }, (_, index) => index + 1);
    const lost = (rank: number, because: string): EngineEnd => ({
      restartable: false,
      error: new HpcserveError('E_AGENT_PART_LOST', {
        what: `the replica ${this.#unit.unit} on ${nodes} nodes ended`,
        because: `its part ${rank + 1} of ${nodes} ${because}`,
        details: { log_file: this.log_file, rank },
      }),
    });
    const ended = async (rank: number): Promise<EngineEnd> => {
      const because = await board.until(
        rank,
        (notice) => ('because' in notice ? notice.because : undefined),
        signal,
      );
      return lost(rank, `ended: ${because}`);
    };
    const away = async (rank: number): Promise<EngineEnd> => {
      const node = await board.until(rank, (notice) => ('node' in notice ? notice.node : undefined), signal);
      await place.untilNodeLost(node, signal);
      return lost(rank, `is gone: the mesh has lost the node ${node}`);
    };
    try {
      return await Promise.race(others.flatMap((rank) => [ended(rank), away(rank)]));
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
  #probe(environment: NodeJS.ProcessEnv, within: readonly string[]): Promise<EngineProbe | undefined> {
    const { engine_prefix, log } = this.#context;
    const { signal } = this.#stopped;
    const unit = this.#unit;
    return tryToProbe(this.#adapter, { engine_prefix, environment, within, signal }, { unit, log });
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
        if (error instanceof HpcserveError) throw error;
        last = (error as Error).message; // refused until it listens
      }
      if (performance.now() > deadline_ms)
        throw new HpcserveError('E_AGENT_ENGINE_READY', {
          what: `${this.engine} did not serve ${this.#unit.model.name} within ${ready_s} s`,
          because: last,
          details: { log_file: this.log_file },
        });
      await Promise.race([child.ended, delay(ready_poll_ms)]);
    }
    return 'ended';
  }

  /** Resolves where it hung and was killed. */
  async #untilHung(child: Child, watch: EngineWatch, signal: AbortSignal): Promise<EngineEnd> {
    const why = await watch.untilHung(signal);
    this.#hangs = true;
    child.kill();
    const is_gone = await child.gone();
    return hungEngine(why, this.#ending(), { tail: child.log.tail(), pid: this.pid, is_gone });
  }

  /** Stalled, its requests go on elsewhere, and no new ones come; or it is well again. */
  #judged(verdict: HealthVerdict): void {
    const { log, onStalled, onFullness } = this.#context;
    const { unit } = this.#unit;
    const { state } = this.models[0]!;
    if (verdict.is === 'well') {
      log.warn({ unit }, 'the engine goes on: it gets requests again');
      if (state === 'stalled') this.#update({ state: 'serving', error: undefined });
      onFullness();
      return;
    }
    const error = new HpcserveError('E_AGENT_ENGINE_STALLED', {
      what: `${this.engine} stalls: it gets no requests, and those it had go on elsewhere`,
      because: verdict.why,
      details: { log_file: this.log_file, pid: this.pid },
    });
    log.warn({ unit, error: error.toJSON() }, error.message);
    if (state === 'serving') this.#update({ state: 'stalled', error: oneLine(`it stalls: ${verdict.why}`) });
    onFullness();
    onStalled(error);
  }

  #ending(): EndedEngine {
    return {
      unit: this.#unit,
      engine: this.engine,
      version: this.engine_version,
      program: this.#program ?? this.engine,
      log_file: this.log_file,
      has_served: this.#has_served,
    };
  }

  /** Records have no fields that are undefined. */
  #update(change: { [Field in keyof SessionModel]?: SessionModel[Field] | undefined }): void {
    const all = Object.entries({ ...this.models[0]!, ...change });
    this.models[0] = Object.fromEntries(
      all.filter(([, value]) => value !== undefined),
    ) as unknown as SessionModel;
    this.#context.onChange();
  }
}
