/** A sequence is computed half in one worker process and half in another, with its KV brought along. */
import { type ChildProcess, fork } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { fabricAbsence } from '../../../native/fabric/fabric.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { engineOptions, generate, model, prompt } from '../engine/support.ts';
import type { MovingSequence, WorkerCall, WorkerSettings } from './transfer-worker.ts';

const program = join(packageRoot, 'dist/test/agent/transfer/transfer-worker.js');
const opened: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

class Worker {
  readonly id: Promise<string>;
  readonly process: ChildProcess;
  readonly #waiting = new Map<
    number,
    { resolve: (value: unknown) => void; reject: (error: Error) => void }
  >();
  #next = 1;

  constructor(settings: WorkerSettings) {
    this.process = fork(program, [JSON.stringify(settings)], { serialization: 'advanced' });
    this.id = this.#answerTo(0) as Promise<string>;
    this.process.on(
      'message',
      ({ number, result, error }: { number: number; result?: unknown; error?: string }) => {
        const waiting = this.#waiting.get(number);
        if (error !== undefined) waiting?.reject(new Error(error));
        else waiting?.resolve(result);
      },
    );
    this.process.once('exit', (code) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(`the worker ended with ${code}`));
    });
    opened.push(() => this.process.kill('SIGKILL'));
  }

  async ask<T>(call: WorkerCall): Promise<T> {
    const number = this.#next++;
    const answer = this.#answerTo(number);
    this.process.send({ number, call });
    return (await answer) as T;
  }

  #answerTo(number: number): Promise<unknown> {
    const answer = new Promise((resolve, reject) => this.#waiting.set(number, { resolve, reject }));
    answer.catch(() => undefined);
    return answer;
  }
}

interface Moved {
  way?: string;
  bytes?: number;
  runs?: number;
  notices: string[];
  failed?: { code: string };
}

const before = 11;
const after = 12;

async function workers(change: Partial<WorkerSettings> = {}) {
  const folder = await scratchFolder();
  opened.push(() => folder[Symbol.asyncDispose]());
  const settings: WorkerSettings = {
    mesh_folder: folder.path,
    model_path: await model('tiny-llama', 'Q8_0'),
    kv_type: 'f16',
    host: '127.0.0.1',
    private_fabric: true,
    same_node: true,
    providers: ['tcp'],
    ways: ['sendfile'],
    ...change,
  };
  const [a, b] = [new Worker(settings), new Worker(settings)];
  const [, to] = await Promise.all([a.id, b.id]);
  return { a, b, to, settings };
}

/** What an engine answers that is not disturbed. */
function undisturbed({ model_path, kv_type }: WorkerSettings): { prompt: number[]; tokens: number[] } {
  const options = engineOptions(model_path, { batch_invariant: true, kv_type, kv_tokens: 2048 });
  const engine = new NativeEngine(options);
  const asked = prompt(150, engine.info.n_vocab, 9);
  const [answer] = generate(engine, [{ prompt: asked, max_new_tokens: before + after }]);
  engine.close();
  return { prompt: [...asked], tokens: answer!.tokens };
}

const kinds: [string, Partial<WorkerSettings>, RegExp][] = [
  ['rma', { ways: ['rma'] }, /^rma \(tcp/],
  ['rma within the node', { ways: ['rma'], providers: ['shm'] }, /^rma \(shm/],
  ['sendfile', { ways: ['sendfile'] }, /^sendfile$/],
  ['tcp', { ways: ['tcp'], private_fabric: false, same_node: false }, /^tcp, encrypted$/],
  ['sendfile, with KV in q8_0', { ways: ['sendfile'], kv_type: 'q8_0' }, /^sendfile$/],
];
const possible = kinds.filter(([name]) => !name.startsWith('rma') || fabricAbsence() === undefined);

async function halfway(a: Worker, asked: number[]): Promise<MovingSequence> {
  const sequence: MovingSequence = { id: 1, prompt: asked, generated: [], max_new_tokens: before + after };
  // Another one beside it, so that blocks are not where they would be alone.
  await a.ask({
    call: 'add',
    sequence: { ...sequence, id: 2, prompt: asked.slice(0, 40), max_new_tokens: 200 },
  });
  await a.ask({ call: 'add', sequence });
  return { ...sequence, generated: await a.ask<number[]>({ call: 'step', id: 1, tokens: before }) };
}

describe('a sequence that moves between two processes', () => {
  it.each(possible)('by %s goes on as if nothing had happened', async (_, change, way) => {
    const { a, b, to, settings } = await workers(change);
    const expected = undisturbed(settings);
    const sequence = await halfway(a, expected.prompt);
    await b.ask({ call: 'expect', name: 'seq', sequence });
    const moved = await a.ask<Moved>({ call: 'move', id: 1, name: 'seq', generation: 1, to });
    expect(moved.failed).toBeUndefined();
    expect(moved.way).toMatch(way);
    expect(moved.notices).toEqual([]);
    expect(await b.ask({ call: 'take', name: 'seq', sequence })).toEqual({ carried: true });
    const rest = await b.ask<number[]>({ call: 'step', id: 1, tokens: after });
    expect([...sequence.generated, ...rest]).toEqual(expected.tokens);
    await Promise.all([a.ask({ call: 'end' }), b.ask({ call: 'end' })]);
  });

  it('answers otherwise where its keys and values were damaged before: they are what is computed with', async () => {
    const { a, b, to, settings } = await workers();
    const expected = undisturbed(settings);
    const sequence = await halfway(a, expected.prompt);
    await b.ask({ call: 'expect', name: 'seq', sequence });
    await a.ask({ call: 'move', id: 1, name: 'seq', generation: 1, to, damage: true });
    await b.ask({ call: 'take', name: 'seq', sequence });
    const rest = await b.ask<number[]>({ call: 'step', id: 1, tokens: after });
    expect([...sequence.generated, ...rest]).not.toEqual(expected.tokens);
  });

  it('is computed again, with the same tokens, where nothing came; or goes on where it was', async () => {
    const { a, b, to, settings } = await workers();
    const expected = undisturbed(settings);
    const sequence = await halfway(a, expected.prompt);
    // Nobody told the other one that it comes.
    const moved = await a.ask<Moved>({ call: 'move', id: 1, name: 'seq', generation: 1, to });
    expect(moved.failed).toMatchObject({ code: 'E_KV_ROOM' });
    expect(await b.ask({ call: 'take', name: 'seq', sequence })).toEqual({ carried: false });
    for (const worker of [a, b]) {
      const rest = await worker.ask<number[]>({ call: 'step', id: 1, tokens: after });
      expect([...sequence.generated, ...rest]).toEqual(expected.tokens);
    }
  });

  it('goes on where it was when the other process dies', async () => {
    const { a, b, to, settings } = await workers({ ways: ['sendfile', 'tcp'] });
    const expected = undisturbed(settings);
    const sequence = await halfway(a, expected.prompt);
    b.process.kill('SIGKILL');
    const moved = await a.ask<Moved>({ call: 'move', id: 1, name: 'seq', generation: 1, to });
    expect(moved.failed).toMatchObject({ code: 'E_KV_TRANSFER' });
    const rest = await a.ask<number[]>({ call: 'step', id: 1, tokens: after });
    expect([...sequence.generated, ...rest]).toEqual(expected.tokens);
  });
});
