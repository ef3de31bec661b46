/** One rank of a wrapped engine that runs on several nodes: started as the first node says, ended with it. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { SessionModel } from '../../spec/session-record.ts';
import { checkEngineOptions, type EngineProbe } from '../adapters/adapter.ts';
import { adapterOf } from '../adapters/index.ts';
import { Child } from './child.ts';
import { EngineContainer } from './engine-container.ts';
import { tryToProbe } from './engine-probe.ts';
import { engineEnvironment, freePort, prepareFiles, variablesOf } from './engine-start.ts';
import { checkModelPath } from './model-path.ts';
import { type Meeting, type RankPlace, whyEnded } from './rank-rendezvous.ts';
import type { ProcessContext, ProcessEnd, ServingProcess } from './serving-process.ts';

const stop_grace_ms = 5000;
/** How long the first node may take to end its engine, hand over its answers and leave. */
const leave_ms = 20_000;

/** It answers nobody: requests go to the first node. */
export class EngineRank implements ServingProcess {
  readonly engine: string;
  engine_version: string | undefined;
  readonly log_file: string;
  readonly models: readonly SessionModel[] = [];
  readonly model_errors: ReadonlyMap<string, HpcserveError> = new Map();
  readonly upstream = undefined;
  readonly ended: Promise<ProcessEnd>;
  readonly #context: ProcessContext;
  readonly #unit: UnitSpec;
  readonly #place: RankPlace;
  readonly #stopped = new AbortController();
  /** Its child was told to end and has not, not even by SIGKILL. */
  readonly #stuck = new AbortController();
  #child: Child | undefined;
  /** Ends what is no child of its process. */
  #endContainer: () => Promise<void> = async () => undefined;
  #first_node: string | undefined;

  constructor(context: ProcessContext, place: RankPlace) {
    this.#context = context;
    this.#unit = context.group.units[0]!;
    this.#place = place;
    this.engine = this.#unit.engine;
    this.log_file = context.log_file;
    this.ended = this.#run();
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  loads(): [] {
    return [];
  }

  /** The first node admits requests, and stops admitting them. */
  drain(): void {}

  /** The answers of the first node need this rank: it goes on until that node has ended, or had the time for it. */
  async stop(grace_ms: number): Promise<void> {
    const waiting = new AbortController();
    const { signal } = waiting;
    if (this.#child?.alive)
      await Promise.race([
        this.#firstEnded(signal),
        this.#child.ended,
        delay(this.#context.drain_ms + grace_ms, undefined, { signal }),
      ]);
    waiting.abort();
    this.#stopped.abort();
    if (this.#child && !(await this.#child.stop(grace_ms))) this.#stuck.abort();
    await this.ended;
  }

  async #run(): Promise<ProcessEnd> {
    const { board, rank } = this.#place;
    const watching = new AbortController();
    const signal = AbortSignal.any([watching.signal, this.#stopped.signal]);
    let end: ProcessEnd;
    try {
      end = await this.#runOnce(signal);
    } catch (error) {
      end = this.#stopped.signal.aborted
        ? { restartable: false }
        : { error: HpcserveError.from(error), restartable: false };
    }
    watching.abort();
    await this.#endContainer();
    await board
      .tell(rank, { phase: 'ended', because: whyEnded(end) })
      .catch((error: unknown) => this.#context.log.error({ error: String(error) }, 'the end was not told'));
    if (this.#stopped.signal.aborted) return { restartable: false };
    // Once an agent ends in failure Slurm kills those of the other nodes.
    if (this.#first_node !== undefined)
      await board
        .untilLeft(this.#first_node, leave_ms)
        .catch((error: unknown) =>
          this.#context.log.error({ error: String(error) }, 'the first node is silent'),
        );
    return end;
  }

  async #runOnce(signal: AbortSignal): Promise<ProcessEnd> {
    const { board, rank, node } = this.#place;
    checkModelPath(this.#unit);
    const meeting = await board.until(
      0,
      (notice) => {
        // It may have ended before anybody saw it up.
        if (notice.phase === 'ended') throw this.#lost(`it ended on its first node: ${notice.because}`, []);
        return notice.phase === 'up' ? notice.meeting : undefined;
      },
      signal,
    );
    this.#first_node = meeting.node;
    const child = await this.#start(meeting);
    await board.tell(rank, { phase: 'up', node });
    const first = this.#firstEnded(signal).then((because) => `it ended on its first node: ${because}`);
    const away = this.#firstLost(meeting.node, signal);
    const stuck = once(this.#stuck.signal, 'abort').then(() => 'it does not end by SIGKILL');
    const ended = await Promise.race([first, away, child.ended, stuck]);
    if (this.#stopped.signal.aborted) return { restartable: false };
    if (typeof ended === 'string') {
      const has_ended = await child.stop(stop_grace_ms);
      const end: ProcessEnd = { restartable: false, error: this.#lost(ended, []) };
      if (!has_ended) end.gone = Promise.resolve(false);
      return end;
    }
    return {
      restartable: false,
      error: this.#lost(`its part on this node ${ended.words}`, ended.last_lines),
      orderly: ended.orderly,
      exit_code: ended.code,
      signal: ended.signal,
      tail: ended.tail,
    };
  }

  /** Why it did; never where the watch is given up. */
  #firstEnded(signal: AbortSignal): Promise<string> {
    return this.#place.board
      .until(0, (notice) => (notice.phase === 'ended' ? notice.because : undefined), signal)
      .catch((error: unknown) => {
        if (signal.aborted) return new Promise<never>(() => undefined);
        throw error;
      });
  }

  /** What is said where that node is lost; never where the watch is given up. */
  #firstLost(node: string, signal: AbortSignal): Promise<string> {
    return this.#place.untilNodeLost(node, signal).then(
      () => `the mesh has lost its first node, ${node}`,
      (error: unknown) => {
        if (signal.aborted) return new Promise<never>(() => undefined);
        throw error;
      },
    );
  }

  async #start(meeting: Meeting): Promise<Child> {
    const { engine_prefix, runtime_folder, group, guard, memory_limit_bytes, log } = this.#context;
    const { rank, nodes, address } = this.#place;
    const { key, address: leader_address, port: leader_port } = meeting;
    const leader = { address: leader_address, port: leader_port };
    const unit = this.#unit;
    if (unit.engine === 'native') throw new TypeError('the native engine runs on one node');
    const container = new EngineContainer(engine_prefix, unit, runtime_folder);
    const around = engineEnvironment(unit, this.#context);
    const environment = { ...around, ...container.environment(around) };
    await container.check(environment, this.#stopped.signal, log);
    const probed = await this.#probe(environment, meeting);
    const line = adapterOf(unit.engine).commandLine(unit, {
      runtime_folder,
      port: await freePort('127.0.0.1'),
      key,
      engine_prefix: container.prefix,
      probed,
      emulated: group.devices.some((device) => device.description.emulated !== undefined),
      devices: group.devices,
      cores: group.cores,
      place: { rank, nodes, own_address: address, leader },
    });
    for (const notice of line.notices ?? []) log.warn({ unit: unit.unit }, notice);
    if (probed) checkEngineOptions(unit, probed, line.argv.slice(container.prefix.length));
    this.#stopped.signal.throwIfAborted();
    prepareFiles(line);
    container.detached?.register();
    this.#endContainer = async () => container.detached?.end(environment, log);
    const names = [...Object.keys(line.env), ...variablesOf(unit, this.#context)];
    const child = new Child({
      detached: container.detached && (() => container.detached!.pid(environment)),
      argv: container.started(line.argv, names, line.cwd),
      env: { ...environment, ...line.env },
      cwd: line.cwd,
      log_file: this.log_file,
      guard,
      secrets: [key],
      cores: group.cores,
      memory_limit_bytes,
    });
    this.#child = child;
    log.info({ unit: unit.unit, rank, argv: line.argv, pid: child.pid }, 'rank of an engine started');
    this.#context.onChange();
    return child;
  }

  /**
   * What is installed on this node: its command line is made for that, as on the first one.
   * @throws HpcserveError E_AGENT_PART_LOST where that is another version: its ranks would not understand each other
   */
  async #probe(environment: NodeJS.ProcessEnv, first: Meeting): Promise<EngineProbe | undefined> {
    const { engine_prefix, log } = this.#context;
    const { signal } = this.#stopped;
    const unit = this.#unit;
    if (unit.engine === 'native') return undefined;
    const asked = { engine_prefix, environment, signal };
    const probed = await tryToProbe(adapterOf(unit.engine), asked, { unit, log });
    signal.throwIfAborted();
    this.engine_version = probed?.version;
    const [here, there] = [probed?.version, first.version];
    if (here !== undefined && there !== undefined && here !== there)
      throw this.#lost(`${unit.engine} is ${here} on ${this.#place.node}, and ${there} on ${first.node}`, []);
    return probed;
  }

  #lost(because: string, lines: readonly string[]): HpcserveError {
    return new HpcserveError('E_AGENT_PART_LOST', {
      what: `the replica ${this.#unit.unit} on ${this.#place.nodes} nodes ended`,
      because: [because, ...lines],
      details: { log_file: this.log_file, rank: this.#place.rank },
    });
  }
}
