import type { EngineLimits, ModelLoad } from '../../spec/agent-state.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { SessionModel } from '../../spec/session-record.ts';
import type { SiteSharing } from '../../spec/sharing-settings.ts';
import type { SleepReport } from '../../spec/sleep-report.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { TurnsReport } from '../../spec/turns-report.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import type { FatalScope } from '../adapters/fatal.ts';
import type { MovesPlace } from '../device-worker/moving/moves-place.ts';
import type { BlockFeed } from '../kv-events/block-feed.ts';
import type { AnswerPace } from './answer-pace.ts';
import type { AnswerTimes } from './answer-times.ts';
import type { UnitGroup } from './assign-devices.ts';
import type { DeviceTurns } from './device-turns.ts';
import type { AgentLog } from './log.ts';
import type { OrphanGuard } from './orphan-guard.ts';
import type { RankPlace } from './rank-rendezvous.ts';
import type { StageTimes } from './stage-times.ts';
import type { Waking } from './waking.ts';

/** Where a process answers OpenAI's paths; on this host only. */
export type Upstream =
  | { kind: 'socket'; path: string; key?: string }
  | { kind: 'loopback'; port: number; key?: string };

/** Requests of one unit, and what came of them. */
export interface Traffic {
  in_flight: number;
  /** Of these, what the engine was given: others wait until it is awake, or for the rest of their bodies. */
  passed: number;
  /** Of these, streams that have begun. */
  streams: number;
  /** Since ever. */
  answer_bytes: number;
  /** How tokens come, over all streams. */
  readonly pace: AnswerPace;
  /** How long answers take. */
  readonly times: AnswerTimes;
  /** Of the requests in flight, those to which nothing has been answered. */
  readonly unanswered: Set<UnansweredRequest>;
}

export interface UnansweredRequest {
  /** As in `headers.request_id`; empty where the gateway gave none. */
  id: string;
  /** When all of it had been passed on, by `performance.now()`; absent: not yet. */
  passed_ms?: number;
}

/** One start of a device worker or of a wrapped engine: from spawn to end. */
export interface ServingProcess {
  readonly engine: string;
  readonly engine_version: string | undefined;
  readonly pid: number | undefined;
  readonly log_file: string;
  /** Current state of each model it serves, in the order of the group's units. */
  readonly models: readonly SessionModel[];
  /** Why models failed, by name. */
  readonly model_errors: ReadonlyMap<string, HpcserveError>;
  /** When a model that failed is tried again, Unix ms; undefined where it is not. */
  nextTry_ms?(model: string): number | undefined;
  /** What is wrong and does not stop it. */
  readonly notices?: readonly HpcserveError[];
  /** What a wrapped engine chose itself; absent until it has said so. */
  readonly limits?: EngineLimits | undefined;
  /** Of native models that serve, by name: bytes of their weights by layout. */
  readonly layouts?: Readonly<Record<string, Readonly<Record<string, number>>>>;
  /** Of native models, by name: how their weights, or those of a stage here, were loaded last. */
  readonly loaded?: Readonly<Record<string, WeightSources>>;
  /** Of native models whose weights lie in host memory, by name. */
  readonly streamed?: Readonly<Record<string, StreamedWeights>>;
  /** Of native models whose pipelines it coordinates, by name. */
  readonly stage_times?: StageTimes | undefined;
  /** Memory of its processes as it began to serve; absent until that is known. */
  readonly host_bytes?: number | undefined;
  /** Of several engines on its device another is awake; absent: it takes no turns. */
  readonly asleep?: boolean | undefined;
  /** Of its turns on a device that it shares so. */
  readonly turns?: TurnsReport | undefined;
  /** Of an engine that may sleep; undefined while it does not serve. */
  sleepReport?(): SleepReport | undefined;
  /** What its KV cache holds; absent where it does not say. */
  readonly blocks?: BlockFeed | undefined;
  /** Of a device worker: what moved to others and came from them with keys and values. */
  readonly moves?: MovesReport | undefined;
  /** Defined as soon as requests can be sent. */
  readonly upstream: Upstream | undefined;
  /** Resolves once, when the process is gone; never rejects. */
  readonly ended: Promise<ProcessEnd>;
  /** @param in_flight requests the agent has passed on and not seen the end of */
  loads(in_flight: number): ModelLoad[];
  /**
   * Before a request is passed on: undefined where the engine can take it now.
   * @param isCertain it is let in whatever was promised to others
   */
  wake?(isCertain: boolean): Waking | undefined;
  /** Stop admitting new requests, where the process can be told so. */
  drain(): void;
  stop(grace_ms: number): Promise<void>;
}

export interface ProcessEnd {
  /** Absent where it ended because it was asked to. */
  error?: HpcserveError;
  /** Whether another start may help: it had been serving, and did not itself say that it cannot go on. */
  restartable: boolean;
  /** Where it was killed: whether it has ended by that. One that has not has its device still. */
  gone?: Promise<boolean>;
  /** It ended as by SIGTERM: no failure where the whole job is being ended. */
  orderly?: boolean;
  /** Going on is of no use: there is no further start, and of a device none for others on it either. */
  fatal?: FatalScope;
  /** How the process ended, and the end of what it wrote, for the failure report. */
  exit_code?: number | null;
  signal?: NodeJS.Signals | null;
  tail?: readonly string[];
}

export interface ProcessContext {
  group: UnitGroup;
  /** Absent: all of the replica is on this node. */
  place?: RankPlace | undefined;
  /** 0700, of this start alone. */
  runtime_folder: string;
  log_file: string;
  library_dir: string | undefined;
  heartbeat_ms: number;
  /** How long running requests may take to end once the agent was told to stop. */
  drain_ms: number;
  /** Least time of an iteration, where the devices are emulated and their speed is declared. */
  step_ms_min: number | undefined;
  /** How native models share a device, where the site says so. */
  sharing: SiteSharing | undefined;
  /** Where device workers ask for tensors that other nodes have in memory; see `PeerWeights`. */
  peers_socket: string | undefined;
  /** How running answers of native models may move to other workers; absent: from their tokens alone. */
  moves: MovesPlace | undefined;
  /** Of the session that stands for it. */
  session_id: string;
  /** Folder of the deployment for what workers had in memory; absent: the next one begins with nothing. */
  manifest_folder: string | undefined;
  /** What the job may use on this node, where that is limited. */
  memory_limit_bytes: number | undefined;
  /** What the plan gave the job on this node, where that is known. */
  planned_memory_bytes: number | undefined;
  engine_prefix: readonly string[];
  /** Of the site config: where ranks of an engine on several nodes talk to each other. */
  engine_interfaces?: readonly string[] | undefined;
  /** Cores by physical core: hardware threads of one are together. */
  physical_cores(cores: readonly number[]): number[][];
  guard: OrphanGuard;
  log: AgentLog;
  environment: NodeJS.ProcessEnv;
  traffic: Readonly<Traffic>;
  /** Where other wrapped engines are on the same device: one of them is awake at a time. */
  turns?: DeviceTurns | undefined;
  /** A model's state or progress changed. */
  onChange(): void;
  /** It does not work for now: its running requests end with this, and gateways have them answered elsewhere. */
  onStalled(error: HpcserveError): void;
  /** A model has no place left, or has one again: who places requests is to know at once. */
  onFullness(): void;
}
