/** A coordinator over simulated devices: sequences are computed while layouts change and things fail, by seed. */

import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import type {
  RefactoringAction,
  RefactoringEvent,
  RefactoringOutcome,
} from '../../../solver/refactoring/messages.ts';
import { Refactoring } from '../../../solver/refactoring/refactoring.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';
import {
  attentionIn,
  block_rows,
  type CopyOrder,
  type Frame,
  hasKv,
  type Message,
  mix,
  type Report,
  type Segment,
  SimulatedDevice,
} from './pipeline-world.ts';

export interface RunOptions {
  seed: number;
  layers: number;
  devices: number;
  sequences: number;
  answer_tokens: number;
  /** Chance of each failure at each step; 0: nothing fails. */
  failure_rate: number;
}

interface SimulatedSequence {
  id: number;
  tokens: number[];
  /** Prefix hash by row. */
  prefixes: number[];
  prompt_tokens: number;
  /** Rows whose KV is written and came back. */
  computed: number;
  in_flight: number;
  blocks: number[];
}

export interface RunReport {
  wrong: string[];
  answers: Map<number, number[]>;
  outcomes: RefactoringOutcome[];
  /** Blocks times transfers that were copied while nothing computed, per refactoring, and the most that may be. */
  paused: { copied: number; bound: number }[];
  /** All sequences ended, or the pipeline was lost. */
  ended: boolean;
  steps: number;
}

const steps_max = 60_000;
const depth = 2;

/** What the answers are without any refactoring. */
export function answersOf({ seed, sequences, answer_tokens }: RunOptions): Map<number, number[]> {
  const answers = new Map<number, number[]>();
  for (let id = 0; id < sequences; id++) {
    const { tokens, prefixes, prompt_tokens } = newSequence(seed, id);
    while (tokens.length < prompt_tokens + answer_tokens) extend(tokens, prefixes, prefixes.at(-1)!);
    answers.set(id, tokens.slice(prompt_tokens));
  }
  return answers;
}

function newSequence(seed: number, id: number): SimulatedSequence {
  const prompt_tokens = 1 + (Math.abs(mix(seed, id)) % 14);
  const tokens = Array.from(
    { length: prompt_tokens },
    (_, index) => Math.abs(mix(mix(seed, id), index)) % 1000,
  );
  const prefixes: number[] = [];
  for (const token of tokens) prefixes.push(mix(prefixes.at(-1) ?? id, token));
  return { id, tokens, prefixes, prompt_tokens, computed: 0, in_flight: 0, blocks: [] };
}

function extend(tokens: number[], prefixes: number[], prefix: number): void {
  const token = Math.abs(mix(prefix, 1)) % 1000;
  tokens.push(token);
  prefixes.push(mix(prefix, token));
}

/** Everything happens in `run`, one message after the other, in an order that the seed gives. */
export class SimulatedRun {
  readonly #options: RunOptions;
  readonly #random: () => number;
  readonly #n_operators: number;
  readonly #devices = new Map<string, SimulatedDevice>();
  /** By `from>to`; within one, in order. */
  readonly #channels = new Map<string, (Message | Report)[]>();
  readonly #sequences: SimulatedSequence[];
  readonly #free: number[];
  readonly #report: RunReport;
  #layout: PipelineLayout;
  #epoch = 1;
  #number = 0;
  #batches = new Map<number, Segment[]>();
  #refactoring: Refactoring | undefined;
  #refactorings = 0;
  #paused = false;
  #prefillHeld = false;
  #begun = new Set<string>();
  #ringBroken = false;
  #lost = false;
  readonly #copiedInPause = new Set<string>();
  #target: PipelineLayout = [];
  #pausedRunning = 0;

  constructor(options: RunOptions) {
    this.#options = options;
    this.#random = seededRandom(options.seed);
    this.#n_operators = 2 * options.layers + 2;
    this.#layout = this.#anyLayout();
    for (let index = 0; index < options.devices; index++) {
      const name = `d${index}`;
      const stage = this.#layout.find(({ device }) => device === name);
      this.#devices.set(name, new SimulatedDevice(name, this.#n_operators, stage ? 1 : 0, stage));
    }
    this.#sequences = Array.from({ length: options.sequences }, (_, id) => newSequence(options.seed, id));
    this.#free = Array.from({ length: 100 }, (_, block) => block);
    this.#report = { wrong: [], answers: new Map(), outcomes: [], paused: [], ended: false, steps: 0 };
  }

  run(): RunReport {
    const report = this.#report;
    while (!report.ended && report.steps < steps_max && report.wrong.length === 0) {
      report.steps++;
      this.#submit();
      this.#perhapsFail();
      if (!this.#deliver() && !this.#perhapsRefactor(1)) this.#deadline();
      this.#perhapsRefactor(0.01);
      report.ended = this.#lost || this.#sequences.every((sequence) => this.#isDone(sequence));
    }
    if (report.ended && !this.#lost) this.#settle();
    for (const { id, tokens, prompt_tokens } of this.#sequences)
      report.answers.set(id, tokens.slice(prompt_tokens));
    return report;
  }

  /** What is left of a refactoring goes to its end; then no device has anything of a layout that is over. */
  #settle(): void {
    for (let step = 0; step < steps_max && (this.#refactoring || this.#pending().length > 0); step++)
      if (!this.#deliver()) this.#deadline();
    if (this.#lost) return;
    for (const [name, device] of this.#devices) {
      const stage = this.#layout.find((each) => each.device === name);
      const allowed = stage ? attentionIn(stage, this.#n_operators) : [];
      const extra = device.operators.filter((operator) => !allowed.includes(operator));
      if (extra.length > 0) this.#wrong(`${name} still has KV of the operators ${extra}`);
      if (device.held.prepared) this.#wrong(`${name} still holds a stage that was prepared`);
    }
  }

  #isDone({ tokens, prompt_tokens }: SimulatedSequence): boolean {
    return tokens.length >= prompt_tokens + this.#options.answer_tokens;
  }

  #submit(): void {
    if (this.#paused || this.#lost || this.#batches.size >= depth) return;
    const room = this.#sequences.filter((each) => each.blocks.length > 0 && !this.#isDone(each)).length;
    const segments: Segment[] = [];
    for (const sequence of this.#sequences) {
      if (this.#isDone(sequence) || sequence.in_flight > 0) continue;
      // A few at once; the others come when blocks are free again.
      if (sequence.blocks.length === 0 && room >= 3) continue;
      const left = sequence.tokens.length - sequence.computed;
      if (this.#prefillHeld && left > 1) continue;
      if (this.#random() < 0.4) continue;
      segments.push(this.#segment(sequence, Math.min(left, 1 + Math.floor(this.#random() * 5))));
    }
    if (segments.length === 0) return;
    const number = ++this.#number;
    this.#batches.set(number, segments);
    const frame = { kind: 'batch', epoch: this.#epoch, number, at: 0, segments, hops: this.#layout } as const;
    this.#send('coordinator', { to: this.#layout[0]!.device, do: 'frame', frame });
  }

  #segment(sequence: SimulatedSequence, rows: number): Segment {
    const { id, computed: past, prefixes, blocks } = sequence;
    while (blocks.length * block_rows < past + rows) blocks.push(this.#free.shift()!);
    for (let row = past; row < past + rows; row++)
      this.#refactoring?.wrote(
        blocks[Math.floor(row / block_rows)]!,
        row % block_rows,
        (row % block_rows) + 1,
      );
    sequence.in_flight = rows;
    return {
      id,
      past,
      prefixes: prefixes.slice(past, past + rows),
      before: prefixes.slice(0, past),
      blocks: [...blocks],
    };
  }

  #result(number: number): void {
    const segments = this.#batches.get(number);
    if (!segments) return;
    this.#batches.delete(number);
    for (const { id, past, prefixes } of segments) {
      const sequence = this.#sequences[id]!;
      sequence.computed = past + prefixes.length;
      sequence.in_flight = 0;
      if (sequence.computed === sequence.tokens.length)
        extend(sequence.tokens, sequence.prefixes, prefixes.at(-1)!);
      if (this.#isDone(sequence)) this.#freeBlocks(sequence);
    }
    if (this.#paused && this.#batches.size === 0) this.#hear({ kind: 'drained' });
  }

  #freeBlocks(sequence: SimulatedSequence): void {
    for (const block of sequence.blocks) this.#refactoring?.freed(block);
    // At the front: what is freed is written by another soon.
    this.#free.unshift(...sequence.blocks.splice(0));
  }

  #send(from: string, message: Message): void {
    const key = `${from}>${message.to}`;
    const queue = this.#channels.get(key) ?? [];
    this.#channels.set(key, queue);
    queue.push(message);
  }

  #pending(): [string, (Message | Report)[]][] {
    return [...this.#channels].filter(([, queue]) => queue.length > 0);
  }

  /** One message of any channel arrives. */
  #deliver(): boolean {
    const pending = this.#pending();
    if (pending.length === 0) return false;
    const [key, queue] = pending[Math.floor(this.#random() * pending.length)]!;
    const message = queue.shift()!;
    if (!('do' in message)) {
      this.#told(message);
      return true;
    }
    const device = this.#devices.get(message.to);
    if (!device) return true;
    const { messages, reports } = device.receive(message);
    for (const next of messages) this.#send(message.to, next);
    for (const report of reports) {
      const back = `${message.to}>coordinator`;
      const queued = this.#channels.get(back) ?? [];
      this.#channels.set(back, queued);
      queued.push(report);
    }
    void key;
    return true;
  }

  #told(report: Report): void {
    if (report.kind === 'wrong') this.#wrong(report.what);
    else if (report.kind === 'copied') this.#copied(report.order);
    else if (report.kind === 'in_epoch') this.#inEpoch(report.device, report.epoch);
    else if (report.kind === 'result') {
      if (report.epoch === this.#epoch) this.#result(report.number);
    } else if (report.refactoring === this.#refactorings)
      this.#hear({ kind: 'prepared', device: report.device });
  }

  #copied({ refactoring, transfer, round, rows }: CopyOrder): void {
    if (refactoring !== this.#refactorings) return;
    const { phase } = this.#refactoring ?? {};
    if (phase === 'pausing' || phase === 'cutting')
      for (const { block } of rows) this.#copiedInPause.add(`${transfer}:${block}`);
    this.#hear({ kind: 'copied', transfer, round });
  }

  #inEpoch(device: string, epoch: number): void {
    if (epoch !== this.#epoch || !this.#begun.delete(device) || this.#begun.size > 0) return;
    this.#hear({ kind: 'begun', epoch });
  }

  #hear(event: RefactoringEvent): void {
    if (this.#refactoring) for (const action of this.#refactoring.handle(event)) this.#act(action);
  }

  #act(action: RefactoringAction): void {
    switch (action.do) {
      case 'prepare':
        this.#prepare(action);
        break;
      case 'copy':
        this.#order(this.#refactoring!, action);
        break;
      case 'hold_prefill':
        this.#prefillHeld = true;
        break;
      case 'pause':
        this.#paused = true;
        if (this.#batches.size === 0) this.#hear({ kind: 'drained' });
        break;
      case 'resume':
        this.#paused = false;
        this.#prefillHeld = false;
        break;
      case 'begin':
        this.#begin(action.layout, action.epoch);
        break;
      case 'release':
        this.#send('coordinator', { to: action.device, do: 'release', keeps: action.keeps });
        break;
      case 'end':
        this.#end(action.outcome);
    }
  }

  #prepare({ device, stage }: RefactoringAction & { do: 'prepare' }): void {
    if (this.#fails()) this.#hear({ kind: 'refused', device, because: 'no memory' });
    else this.#send('coordinator', { to: device, do: 'prepare', refactoring: this.#refactorings, stage });
  }

  #order(refactoring: Refactoring, action: RefactoringAction & { do: 'copy' }): void {
    const { from, to, begin, end } = refactoring.transfers[action.transfer]!;
    const { transfer, round, rows } = action;
    const order = {
      refactoring: this.#refactorings,
      transfer,
      round,
      source: from,
      target: to,
      begin,
      end,
      rows,
    };
    // Along the ring it comes behind every batch before it; in a broken one nothing is under way any more.
    if (this.#ringBroken) this.#send('coordinator', { to: from, do: 'copy', order });
    else {
      const frame: Frame = { kind: 'copies', epoch: this.#epoch, orders: [order], hops: this.#layout };
      this.#send('coordinator', { to: this.#layout[0]!.device, do: 'frame', frame });
    }
  }

  #begin(layout: PipelineLayout, epoch: number): void {
    this.#epoch = epoch;
    this.#begun = new Set(layout.map(({ device }) => device));
    for (const { device, begin, end } of layout)
      this.#send('coordinator', { to: device, do: 'begin', epoch, stage: { begin, end } });
  }

  #end(outcome: RefactoringOutcome): void {
    const refactoring = this.#refactoring!;
    this.#report.outcomes.push(outcome);
    if (outcome.kind === 'lost') {
      this.#lost = true;
    } else if (outcome.kind === 'refactored') {
      this.#layout = this.#target;
      this.#ringBroken = false;
      for (const transfer of outcome.incomplete) this.#truncate(refactoring.transfers[transfer]!.mask);
      if (outcome.incomplete.length === 0)
        this.#report.paused.push({
          copied: this.#copiedInPause.size,
          bound: this.#pausedRunning * refactoring.transfers.length,
        });
    }
    this.#refactoring = undefined;
    this.#paused = false;
    this.#prefillHeld = false;
  }

  /** Rows of the lost device that did not come across are computed again. */
  #truncate(mask: { validRows(block: number): number }): void {
    for (const sequence of this.#sequences) {
      let usable = 0;
      for (const block of sequence.blocks) {
        const rows = mask.validRows(block);
        usable += rows;
        if (rows < block_rows) break;
      }
      sequence.computed = Math.min(sequence.computed, usable);
    }
  }

  #perhapsRefactor(chance: number): boolean {
    if (this.#refactoring || this.#lost || this.#random() >= chance) return false;
    this.#target = this.#anyLayout();
    this.#refactorings++;
    this.#copiedInPause.clear();
    this.#refactoring = new Refactoring({
      from: this.#layout,
      to: this.#target,
      epoch: this.#epoch,
      hasKv: (range) => hasKv(range, this.#n_operators),
      filled: this.#filled(),
      running: () => {
        this.#pausedRunning = this.#sequences.filter(({ blocks }) => blocks.length > 0).length;
        return this.#pausedRunning;
      },
    });
    for (const action of this.#refactoring.start()) if (this.#refactoring) this.#act(action);
    return true;
  }

  #filled(): [number, number][] {
    return this.#sequences.flatMap(({ blocks, computed, in_flight }) =>
      blocks.map((block, index): [number, number] => [
        block,
        Math.max(0, Math.min(block_rows, computed + in_flight - index * block_rows)),
      ]),
    );
  }

  #fails(): boolean {
    return this.#random() < this.#options.failure_rate;
  }

  #perhapsFail(): void {
    const { failure_rate } = this.#options;
    const phase = this.#refactoring?.phase;
    if (failure_rate === 0 || phase === undefined || this.#random() >= failure_rate) return;
    const transfers = this.#refactoring!.transfers.length;
    const transfer = Math.floor(this.#random() * transfers);
    const kind = Math.floor(this.#random() * 4);
    if (kind === 0) this.#hear({ kind: 'cancelled', because: 'asked for' });
    else if (kind === 1) this.#hear({ kind: 'deadline', phase });
    else if (kind === 2) {
      if (transfers > 0) this.#hear({ kind: 'copy_failed', transfer, because: 'a checksum' });
    } else this.#kill(`d${Math.floor(this.#random() * this.#options.devices)}`);
  }

  #kill(device: string): void {
    if (!this.#devices.delete(device)) return;
    for (const key of [...this.#channels.keys()])
      if (key.startsWith(`${device}>`) || key.endsWith(`>${device}`)) this.#channels.delete(key);
    if (this.#layout.some((stage) => stage.device === device)) {
      // What was under way is gone; what it computed is computed again.
      this.#ringBroken = true;
      this.#batches.clear();
      for (const sequence of this.#sequences) sequence.in_flight = 0;
    }
    this.#hear({ kind: 'lost', device, because: 'killed' });
    if (this.#refactoring?.phase === 'pausing' && this.#batches.size === 0) this.#hear({ kind: 'drained' });
    const serves = this.#layout.every((stage) => this.#devices.has(stage.device));
    if (!serves && !this.#refactoring) this.#lost = true;
  }

  /** Nothing is under way: what is waited for does not come. */
  #deadline(): void {
    const phase = this.#refactoring?.phase;
    if (phase !== undefined) this.#hear({ kind: 'deadline', phase });
  }

  #wrong(what: string): void {
    this.#report.wrong.push(what);
  }

  #anyLayout(): PipelineLayout {
    const names = Array.from({ length: this.#options.devices }, (_, index) => `d${index}`)
      .filter((name) => this.#devices.size === 0 || this.#devices.has(name))
      .map((name) => ({ name, key: this.#random() }))
      .sort((a, b) => a.key - b.key)
      .map(({ name }) => name);
    const stages = 1 + Math.floor(this.#random() * Math.min(names.length, 4));
    const cuts = new Set<number>();
    while (cuts.size < stages - 1) cuts.add(1 + Math.floor(this.#random() * (this.#n_operators - 1)));
    const edges = [0, ...[...cuts].sort((a, b) => a - b), this.#n_operators];
    return edges.slice(1).map((end, index) => ({ device: names[index]!, begin: edges[index]!, end }));
  }
}
