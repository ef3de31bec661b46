import { setTimeout as delay } from 'node:timers/promises';
import type { Dispatcher } from 'undici';
import { Pool } from 'undici';
import { z } from 'zod';
import type { SessionFacts } from '../ledger/index.ts';
import {
  channel_protocol,
  pinnedConnect,
  pinnedConnector,
  type RelayFallback,
  type SessionIdentity,
  sessionOrigin,
} from '../mesh/index.ts';
import { ratedPower_w } from '../solver/catalog/power.ts';
import type { Heartbeat, ModelWeights } from '../spec/agent-state.ts';
import type { ErrorCode } from '../spec/errors/registry.ts';
import type { PrefixCacheCounts } from '../spec/prefix-cache.ts';
import { provenProviderOf, type SessionRecord } from '../spec/session-record.ts';
import { streamedWeightsSchema } from '../spec/streamed-weights.ts';
import { agentPaths, headers, sessionServerName } from '../spec/wire.ts';
import { DeviceEnergy } from './device-energy.ts';
import { DeviceTime } from './device-time.ts';
import { deviceWords } from './routing/replica.ts';
import { SilenceTimer } from './silence-timer.ts';
import { UpstreamPool } from './upstream/pool.ts';
import { SessionWays } from './upstream/session-ways.ts';

/**
 * A session that is silent for this long is taken for dead: the design allows 3 s for the loss of a node.
 * Lower: faster, with more false alarms on busy nodes; higher: requests hang longer on a dead node.
 */
const silence_ms = 3000;
/** Allowed until the first heartbeat: a session may be busy with its start. */
const firstSilence_ms = 10_000;
const heartbeat_bytes_max = 1024 * 1024;
/** Reports of devices with many models are the largest. */
const answerBytes_max = 16 * 1024 * 1024;
const reconnectFirst_ms = 50;
const reconnectLast_ms = 2000;
/** Its provider does not let this gateway use it; that changes only when it is deployed anew. */
const reconnectRefused_ms = 60_000;
const finishPoll_ms = 100;
/**
 * Higher: a stall of either side is less likely to pass for a wrong clock; lower: a clock that was set right is seen
 * sooner.
 */
const compared_heartbeats = 5;

export interface LinkEvents {
  /** The session answers: its first heartbeat on a new watch stream arrived. */
  up(link: SessionLink): void;
  /** The watch stream ended, could not be opened, or went silent. */
  down(link: SessionLink, reason: string): void;
  heartbeat(link: SessionLink, heartbeat: Heartbeat): void;
}

/** The way to one session: connections for requests, and the watch stream that tells whether it lives. */
export class SessionLink {
  readonly facts: SessionFacts;
  readonly deviceTime = new DeviceTime();
  readonly deviceEnergy: DeviceEnergy;
  /** It said of a request what that cannot have used: who was told once need not be told again. */
  saidImpossible = false;
  /** The `host` field of requests to it. */
  readonly host: string;
  #record: SessionRecord;
  readonly #own: SessionIdentity;
  readonly #relayFallback: RelayFallback;
  readonly #events: LinkEvents;
  #requests: UpstreamPool;
  readonly #watch: Pool;
  #stream: Dispatcher.ResponseData['body'] | undefined;
  #abort = new AbortController();
  readonly #silence = new SilenceTimer((limit_ms) => this.#silent(limit_ms));
  #retry: NodeJS.Timeout | undefined;
  #retry_ms = reconnectFirst_ms;
  #closed = false;
  /** Since when a heartbeat is overdue, on the monotonic clock: in the future while they come. */
  #unheard_since_ms = Number.NEGATIVE_INFINITY;
  /** By how much its clock was ahead of ours, as its last heartbeats came. */
  #ahead_ms: number[] = [];

  constructor(record: SessionRecord, own: SessionIdentity, relayFallback: RelayFallback, events: LinkEvents) {
    this.#record = record;
    this.#own = own;
    this.#relayFallback = relayFallback;
    this.#events = events;
    const { node, site, engine, deployment, job_id, slurm_account, devices, tier, provider } =
      record.metadata;
    this.facts = { session_id: record.session_id, node, site, tier, provider, device_count: devices.length };
    if (devices.length > 0) this.facts.devices = deviceWords(devices);
    const provider_id = provenProviderOf(record, Date.now());
    if (provider_id !== undefined) this.facts.provider_id = provider_id;
    this.deviceEnergy = new DeviceEnergy(this.deviceTime, ratedPower_w(devices));
    if (engine !== undefined) this.facts.engine = engine;
    if (deployment !== undefined) this.facts.deployment = deployment;
    if (job_id !== undefined) this.facts.job_id = job_id;
    if (slurm_account !== undefined) this.facts.slurm_account = slurm_account;
    this.host = sessionServerName(record.session_id);
    this.#requests = this.#newPool();
    this.#watch = new Pool(sessionOrigin(record), {
      connect: pinnedConnector(record, own, { relayFallback }),
      headersTimeout: 0,
      bodyTimeout: 0,
    });
    void this.#follow();
  }

  get record(): SessionRecord {
    return this.#record;
  }

  set record(record: SessionRecord) {
    this.#record = record;
  }

  /**
   * By how much the clock of its node is ahead of this host's; undefined until it is known. The way of a heartbeat only
   * makes it look less, so the largest of the last ones is nearest.
   */
  get clock_ahead_ms(): number | undefined {
    return this.#ahead_ms.length === 0 ? undefined : Math.round(Math.max(...this.#ahead_ms));
  }

  /** Connections for requests, one request at a time each. */
  get requests(): UpstreamPool {
    return this.#requests;
  }

  /**
   * The JSON of a small GET to the session itself.
   * @throws Error where it is not answered with 200 in time
   */
  async ask(path: string, timeout_ms: number): Promise<unknown> {
    const answer = await this.#watch.request({
      method: 'GET',
      path,
      signal: AbortSignal.timeout(timeout_ms),
    });
    const text = await textOf(answer.body);
    if (answer.statusCode !== 200) throw answerError(answer.statusCode, text);
    return JSON.parse(text);
  }

  /**
   * The JSON of the answer to a small POST to the engine behind a session, about one of its models.
   * @throws Error where it is not answered with 200 in time
   */
  async tell(path: string, model: string, body: unknown, timeout_ms: number): Promise<unknown> {
    const answer = await this.#watch.request({
      method: 'POST',
      path,
      headers: { 'content-type': 'application/json', [headers.model]: encodeURI(model) },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(timeout_ms),
    });
    const text = await textOf(answer.body);
    if (answer.statusCode !== 200) throw answerError(answer.statusCode, text);
    return JSON.parse(text);
  }

  /** Ends the link; requests on their way fail, and are tried elsewhere. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#silence.stop();
    clearTimeout(this.#retry);
    this.#abort.abort();
    this.#requests.destroy(new Error('its session has ended'));
    await this.#watch.destroy();
  }

  /** Ends the link when its requests have ended, or at the latest after `limit_ms`. */
  async finish(limit_ms: number): Promise<void> {
    const deadline_ms = performance.now() + limit_ms;
    while (this.#requests.busy > 0 && performance.now() < deadline_ms && !this.#closed)
      await delay(finishPoll_ms);
    await this.close();
  }

  #newPool(): UpstreamPool {
    // How long an answer takes is the replica's business (queue, prefill); whether it lives, the watch tells.
    const ways = new SessionWays((read) =>
      pinnedConnect(this.#record, this.#own, {
        relayFallback: this.#relayFallback,
        read,
        protocols: [channel_protocol, 'http/1.1'],
      }),
    );
    return new UpstreamPool(ways, () => this.#unheard_since_ms);
  }

  async #follow(): Promise<void> {
    let reason: string;
    try {
      this.#silence.expectWithin(firstSilence_ms);
      const answer = await this.#watch.request({
        method: 'GET',
        path: agentPaths.watch,
        signal: this.#abort.signal,
      });
      if (answer.statusCode !== 200) {
        const words = describeRefusal(await textOf(answer.body));
        if (answer.statusCode === 403 && words !== undefined) this.#retry_ms = reconnectRefused_ms;
        throw new Error(words ?? `its watch path answers ${answer.statusCode}`);
      }
      this.#stream = answer.body;
      await this.#readHeartbeats(answer.body);
      reason = 'its watch stream ended';
    } catch (error) {
      reason = error instanceof Error ? error.message : String(error);
    }
    this.#silence.stop();
    this.#stream = undefined;
    this.#unheard_since_ms = Math.min(this.#unheard_since_ms, performance.now());
    if (this.#closed) return;
    this.#events.down(this, reason);
    this.#retry = setTimeout(() => void this.#follow(), this.#retry_ms);
    this.#retry_ms = Math.min(this.#retry_ms * 2, reconnectLast_ms);
  }

  async #readHeartbeats(body: AsyncIterable<Buffer>): Promise<void> {
    let rest = '';
    let last_ms: number | undefined;
    for await (const chunk of body) {
      rest += chunk.toString('utf8');
      if (rest.length > heartbeat_bytes_max) throw new Error('a heartbeat is larger than 1 MiB');
      const lines = rest.split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (line.trim() === '') continue;
        const heartbeat = parseHeartbeat(line, this.#record.session_id);
        const now_ms = performance.now();
        // A session may be set to a slower heartbeat than the rule foresees; three of its own intervals are then
        // allowed.
        const limit_ms =
          last_ms === undefined ? firstSilence_ms : Math.max(silence_ms, 3 * (now_ms - last_ms));
        this.#silence.expectWithin(limit_ms);
        this.#unheard_since_ms = now_ms + limit_ms / 2;
        if (last_ms === undefined) {
          this.#retry_ms = reconnectFirst_ms;
          this.#events.up(this);
        }
        last_ms = now_ms;
        if (heartbeat.at_ms !== undefined)
          this.#ahead_ms = [...this.#ahead_ms.slice(1 - compared_heartbeats), heartbeat.at_ms - Date.now()];
        this.deviceEnergy.take(heartbeat.energy);
        this.#events.heartbeat(this, heartbeat);
      }
    }
  }

  /** The node may be dead without a word: its connections would hang, so they are all given up. */
  #silent(limit_ms: number): void {
    const error = new Error(`it has been silent for ${Math.round(limit_ms)} ms`);
    // Three heartbeats are missing: from half of that time on the first of them was overdue.
    const unheard_since_ms = performance.now() - limit_ms / 2;
    this.#stream?.destroy(error);
    this.#abort.abort(error);
    this.#abort = new AbortController();
    const abandoned = this.#requests;
    this.#requests = this.#newPool();
    abandoned.destroy(error, unheard_since_ms);
  }
}

/** @throws Error where it is longer than any answer of a session about itself */
async function textOf(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > answerBytes_max) throw new Error(`its answer is larger than ${answerBytes_max} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** That the provider of a session does not let this gateway do something with it; it will not change while both run. */
export class AccessRefused extends Error {
  override readonly name = 'AccessRefused';
}

function answerError(status: number, text: string): Error {
  const words = status === 403 ? describeRefusal(text) : undefined;
  if (words !== undefined) return new AccessRefused(words);
  return new Error(`it answers ${status}: ${text.slice(0, 200)}`);
}

/** What an agent says that lets us not in; undefined where it says something else. */
function describeRefusal(text: string): string | undefined {
  try {
    const parsed = refusalSchema.safeParse(JSON.parse(text));
    return parsed.success ? parsed.data.error.message.slice(0, 500) : undefined;
  } catch {
    return undefined; // no JSON, so not in an agent's words
  }
}

const refusalSchema = z.object({
  error: z.object({ message: z.string(), code: z.literal('E_AGENT_ACCESS' satisfies ErrorCode) }),
});

const noPrefixes: PrefixCacheCounts = { queried_tokens: 0, found_tokens: 0 };
const noWeights: Omit<ModelWeights, 'resting'> = { bytes: 0, resident_bytes: 0, load_bytes_per_s: 0 };

function parseHeartbeat(line: string, session_id: string): Heartbeat {
  const heartbeat = JSON.parse(line) as Heartbeat;
  if (heartbeat.session_id !== session_id || !Array.isArray(heartbeat.models)) {
    throw new Error('what came on its watch stream is no heartbeat of this session');
  }
  if (heartbeat.at_ms !== undefined && !Number.isFinite(heartbeat.at_ms))
    throw new Error('a heartbeat holds an impossible time');
  const { energy } = heartbeat;
  if (energy !== undefined && !(isAmount(energy.joules) && isAmount(energy.at_ms)))
    throw new Error('a heartbeat holds an impossible energy');
  for (const load of heartbeat.models) {
    for (const count of [load.running, load.waiting, load.max_sequences]) {
      if (!Number.isSafeInteger(count) || count < 0) throw new Error('a heartbeat holds an impossible count');
    }
    const { queried_tokens, found_tokens } = load.prefix_cache ?? noPrefixes;
    if (!isAmount(queried_tokens) || !isAmount(found_tokens))
      throw new Error('a heartbeat holds an impossible count of tokens');
    const { bytes, resident_bytes, load_bytes_per_s, promised_share = 0 } = load.weights ?? noWeights;
    if (!isAmount(load.handover_tokens_min ?? 0)) throw new Error('a heartbeat holds an impossible length');
    for (const size of [bytes, resident_bytes, load_bytes_per_s, promised_share])
      if (!isAmount(size)) throw new Error('a heartbeat holds an impossible size');
    // Requests are ordered by these, and no more: what they cannot be is as if it were not told.
    const { streamed, compute_ms } = load;
    if (streamed !== undefined && !streamedWeightsSchema.safeParse(streamed).success) delete load.streamed;
    if (compute_ms !== undefined && !isAmount(compute_ms)) delete load.compute_ms;
  }
  return heartbeat;
}

function isAmount(value: number): boolean {
  return Number.isFinite(value) && value >= 0;
}
