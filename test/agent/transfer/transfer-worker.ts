/**
 * A device worker's engine and memory in a process of its own: it computes sequences, sends them away, and takes those
 * that come, over the mesh's TLS and whichever way is chosen. Told what to do over Node's IPC channel: `WorkerCall`.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Pool } from 'undici';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import type { DetachedSequence } from '../../../agent/engine/detached-sequence.ts';
import type { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { SessionServer } from '../../../agent/node/session-server.ts';
import { answerKvRequest, askKvPeer, type KvPost } from '../../../agent/transfer/control-http.ts';
import { KvSource } from '../../../agent/transfer/kv-source.ts';
import { type KvReceiver, KvTarget } from '../../../agent/transfer/kv-target.ts';
import type { KvOffer, Way } from '../../../agent/transfer/messages.ts';
import { LocalSession, pinnedConnector, RendezvousRegistry, sessionOrigin } from '../../../mesh/index.ts';
import { loadGgml } from '../../../native/ggml.ts';
import type { KvType, SequenceRequest } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { metadata } from '../../mesh/support.ts';
import { engineOptions, GreedyRecorder } from '../engine/support.ts';

export interface WorkerSettings {
  mesh_folder: string;
  model_path: string;
  kv_type: KvType;
  host: string;
  private_fabric: boolean;
  /** Of the other one. */
  same_node: boolean;
  providers: string[];
  ways: Way[];
}

/** A request with what is known of its answer. */
export interface MovingSequence {
  id: number;
  prompt: number[];
  generated: number[];
  max_new_tokens: number;
}

export type WorkerCall =
  | { call: 'add'; sequence: MovingSequence }
  | { call: 'step'; id: number; tokens: number }
  /** A sequence of that name and generation comes; what is said of it travels with requests. */
  | { call: 'expect'; name: string; sequence: MovingSequence }
  | { call: 'move'; id: number; name: string; generation: number; to: string; damage?: boolean }
  /** Goes on with what came; without KV it is computed again. */
  | { call: 'take'; name: string; sequence: MovingSequence }
  | { call: 'end' };

class TransferWorker implements KvReceiver {
  readonly #settings: WorkerSettings;
  readonly #pool: DevicePool;
  readonly #engine: NativeEngine;
  readonly #format: KvOffer['format'];
  readonly #expected = new Map<string, MovingSequence>();
  readonly #arrived = new Map<string, DetachedSequence>();
  readonly #notices: string[] = [];
  #registry!: RendezvousRegistry;
  #own!: LocalSession;
  #source!: KvSource;
  #target!: KvTarget;

  constructor(settings: WorkerSettings) {
    this.#settings = settings;
    this.#pool = new DevicePool(cpuBackend(loadGgml()), { pool_bytes: 64 * 1024 * 1024, threads: 1 });
    const options = engineOptions(settings.model_path, {
      batch_invariant: true,
      kv_type: settings.kv_type,
      kv_tokens: 2048,
    });
    const opening = this.#pool.open(options);
    let engine = opening.advance(true);
    while (!engine) engine = opening.advance(true);
    this.#engine = engine;
    const { n_head_kv } = engine.info;
    this.#format = {
      build: 'test',
      model: createHash('sha256').update(readFileSync(settings.model_path)).digest('hex'),
      kv_type: settings.kv_type,
      row_bytes: engine.kv.row_bytes,
      n_head_kv,
      head_dim: engine.info.n_embd / engine.info.n_head,
    };
  }

  async start(): Promise<string> {
    const { mesh_folder, host, private_fabric, providers, ways } = this.#settings;
    this.#registry = await RendezvousRegistry.open(mesh_folder, { create: true, poll_ms: 50 });
    const server = new SessionServer({
      registry: this.#registry,
      identityOf: (id) => (id === this.#own.id ? this.#own.identity : undefined),
      handle: (_, request, response, { session_id }) =>
        void answerKvRequest(this.#target, session_id, request, response),
    });
    const port = await server.listen(host, undefined);
    const role = 'device-worker' as const;
    this.#own = await LocalSession.join(this.#registry, { ...metadata, role, addresses: [{ host, port }] });
    const options = {
      memory: this.#pool.memory.transferMemory!,
      own: this.#own.identity,
      host,
      private_fabric,
      providers,
      warn: (notice: HpcserveError) => void this.#notices.push(notice.toText()),
    };
    this.#source = new KvSource(options, ways);
    this.#target = new KvTarget(options, this);
    await this.#own.update({ lifecycle: 'SERVING' });
    return this.#own.id;
  }

  formatOf(): KvOffer['format'] {
    return this.#format;
  }

  reserve({ sequence: name, tokens, layers }: KvOffer) {
    const expected = this.#expected.get(name);
    const detached = expected && this.#engine.reserveSequence(requestOf(expected), expected.generated);
    if (!detached) throw new HpcserveError('E_KV_ROOM', { what: `no room for ${name}` });
    return {
      places: (range: KvOffer['tokens']) => detached.pieces(range, layers),
      commit: () => {
        detached.sequence.n_computed = tokens.end;
        this.#arrived.set(name, detached);
      },
      abort: () => this.#engine.discardSequence(detached),
    };
  }

  room(): { places: number; kv_tokens: number } {
    return { places: 1, kv_tokens: this.#engine.stats().kv_tokens_total };
  }

  async answer(call: WorkerCall): Promise<unknown> {
    switch (call.call) {
      case 'add':
        return this.#engine.add(requestOf(call.sequence));
      case 'step':
        return this.#step(call.id, call.tokens);
      case 'expect':
        this.#expected.set(call.name, call.sequence);
        return undefined;
      case 'move':
        return this.#move(call);
      case 'take':
        return this.#take(call.name, call.sequence);
      case 'end':
        return this.#end();
    }
  }

  /** Its next tokens. */
  #step(id: number, count: number): number[] {
    const tokens: number[] = [];
    while (tokens.length < count && this.#engine.busy)
      for (const output of this.#engine.step().outputs)
        if (output.id === id && output.token) tokens.push(output.token.token);
    this.#engine.verify();
    return tokens;
  }

  async #move({ id, name, generation, to, damage }: WorkerCall & { call: 'move' }): Promise<unknown> {
    const record = this.#registry.get(to) ?? (await this.#refreshed(to));
    const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, this.#own.identity) });
    const detached = this.#engine.detachSequence(id)!;
    const layers = { begin: 0, end: this.#engine.info.n_layer };
    const tokens = { begin: 0, end: detached.computed_tokens };
    const runs = detached.runs(tokens);
    if (damage) for (const piece of detached.pieces(tokens, layers)) this.#damage(piece.offset, piece.bytes);
    try {
      const sent = await this.#source.send(
        {
          session_id: to,
          host: record.metadata.addresses[0]!.host,
          same_node: this.#settings.same_node,
          ask: (message, limit_ms) => askKvPeer(postTo(pool), message, limit_ms),
        },
        {
          offer: { sequence: name, generation, format: this.#format, layers, tokens, runs },
          pieces: (range) => detached.pieces(range, layers),
        },
      );
      this.#engine.discardSequence(detached);
      this.#engine.verify();
      return { ...sent, runs: runs.length, notices: this.#notices };
    } catch (error) {
      // It goes on where it was.
      this.#engine.attachSequence(detached, detached.computed_tokens);
      return { failed: HpcserveError.from(error).toJSON(), notices: this.#notices };
    } finally {
      await pool.destroy();
    }
  }

  /** All halves change their sign: what arrives then must change the answer. */
  #damage(offset: number, bytes: number): void {
    const wrong = new Uint8Array(bytes);
    this.#pool.memory.read(offset, wrong);
    for (let at = 1; at < bytes; at += 2) wrong[at]! ^= 0x80;
    this.#pool.memory.write(offset, wrong);
  }

  #take(name: string, sequence: MovingSequence): { carried: boolean } {
    const arrived = this.#arrived.get(name);
    this.#arrived.delete(name);
    const detached = arrived ?? this.#engine.reserveSequence(requestOf(sequence), sequence.generated)!;
    this.#engine.attachSequence(detached, arrived?.computed_tokens ?? 0);
    return { carried: arrived !== undefined };
  }

  async #refreshed(id: string) {
    await this.#registry.refresh();
    const record = this.#registry.get(id);
    if (!record) throw new Error(`no session ${id}`);
    return record;
  }

  async #end(): Promise<void> {
    await this.#source.close();
    await this.#target.close();
    this.#engine.close();
    this.#pool.verify();
    await this.#pool.close();
    setImmediate(() => process.exit(0));
  }
}

function postTo(pool: Pool): KvPost {
  return async (body, signal) => {
    const headers = { 'content-type': 'application/json' };
    const answer = await pool.request({ method: 'POST', path: agentPaths.kv, headers, body, signal });
    return { status: answer.statusCode, body: answer.body };
  };
}

function requestOf({ id, prompt, max_new_tokens }: MovingSequence): SequenceRequest {
  return {
    id,
    prompt_tokens: Int32Array.from(prompt),
    sampler: new GreedyRecorder(),
    max_new_tokens,
    stop_tokens: new Set(),
  };
}

const worker = new TransferWorker(JSON.parse(process.argv[2]!) as WorkerSettings);
process.on('message', ({ number, call }: { number: number; call: WorkerCall }) => {
  worker.answer(call).then(
    (result) => process.send!({ number, result }),
    (error: unknown) => process.send!({ number, error: HpcserveError.from(error).toText() }),
  );
});
process.on('disconnect', () => process.exit(0));
worker.start().then((id) => process.send!({ number: 0, result: id }));
