/**
 * Devices of a pipeline as the refactoring protocol sees them: they hold KV rows of layers, and answer messages. A row
 * is a hash of everything before it: one that is missing, stale or of another sequence is seen when it is read.
 */

import type { BlockRows } from '../../../solver/refactoring/copy-mask.ts';
import { HeldLayouts } from '../../../solver/refactoring/held-layouts.ts';
import type { OperatorRange, PipelineLayout } from '../../../solver/refactoring/layout.ts';

export const block_rows = 4;

export interface Segment {
  id: number;
  past: number;
  /** Hashes of the sequence up to and with each row; the first of them is of row `past`. */
  prefixes: number[];
  /** Hashes of the rows before. */
  before: number[];
  blocks: number[];
}

export interface CopyOrder {
  refactoring: number;
  transfer: number;
  round: number;
  source: string;
  target: string;
  begin: number;
  end: number;
  rows: readonly BlockRows[];
}

export type Frame =
  | { kind: 'batch'; epoch: number; number: number; at: number; segments: Segment[]; hops: PipelineLayout }
  | { kind: 'copies'; epoch: number; orders: CopyOrder[]; hops: PipelineLayout };

export type Message =
  | { to: string; do: 'prepare'; refactoring: number; stage: OperatorRange }
  | { to: string; do: 'begin'; epoch: number; stage: OperatorRange }
  | { to: string; do: 'release'; keeps: OperatorRange | undefined }
  | { to: string; do: 'frame'; frame: Frame }
  | { to: string; do: 'copy'; order: CopyOrder }
  | { to: string; do: 'kv'; order: CopyOrder; values: KvValue[] };

export interface KvValue {
  operator: number;
  block: number;
  row: number;
  value: number | undefined;
}

export type Report =
  | { kind: 'prepared'; device: string; refactoring: number }
  | { kind: 'copied'; order: CopyOrder }
  | { kind: 'in_epoch'; device: string; epoch: number }
  | { kind: 'result'; epoch: number; number: number }
  | { kind: 'wrong'; what: string };

export function mix(a: number, b: number): number {
  let hash = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35);
  hash ^= hash >>> 15;
  return Math.imul(hash, 0x2c1b3c6d) ^ (hash >>> 13);
}

export const hasKv = ({ begin, end }: OperatorRange, n_operators: number): boolean =>
  attentionIn({ begin, end }, n_operators).length > 0;

/** Odd operators but the last attend. */
export function attentionIn({ begin, end }: OperatorRange, n_operators: number): number[] {
  return Array.from({ length: end - begin }, (_, index) => begin + index).filter(
    (operator) => operator % 2 === 1 && operator < n_operators - 1,
  );
}

/** One device: what it holds, and what it does with a message. */
export class SimulatedDevice {
  readonly held: HeldLayouts;
  readonly #name: string;
  readonly #n_operators: number;
  /** By operator, then block × rows. */
  readonly #kv = new Map<number, Map<number, number>>();
  #refactoring = -1;

  constructor(name: string, n_operators: number, epoch: number, stage?: OperatorRange) {
    this.#name = name;
    this.#n_operators = n_operators;
    this.held = new HeldLayouts(epoch, stage);
  }

  /** Operators whose KV it has memory for. */
  get operators(): number[] {
    return [...this.#kv.keys()];
  }

  receive(message: Message): { messages: Message[]; reports: Report[] } {
    switch (message.do) {
      case 'prepare':
        this.#refactoring = message.refactoring;
        this.held.prepare(message.stage);
        return said({ kind: 'prepared', device: this.#name, refactoring: message.refactoring });
      case 'begin':
        return this.held.begin(message.epoch, message.stage)
          ? said({ kind: 'in_epoch', device: this.#name, epoch: message.epoch })
          : nothing;
      case 'release':
        return this.#release(message.keeps);
      case 'copy':
        return this.#read(message.order);
      case 'kv':
        return this.#store(message.order, message.values);
      case 'frame':
        return this.#frame(message.frame);
    }
  }

  #release(keeps: OperatorRange | undefined): typeof nothing {
    this.#refactoring = -1;
    this.held.release(keeps);
    const kept = new Set(this.held.held.flatMap((range) => attentionIn(range, this.#n_operators)));
    for (const operator of [...this.#kv.keys()]) if (!kept.has(operator)) this.#kv.delete(operator);
    return nothing;
  }

  #read(order: CopyOrder): { messages: Message[]; reports: Report[] } {
    const values = attentionIn(order, this.#n_operators).flatMap((operator) =>
      order.rows.flatMap(({ block, begin, end }) =>
        Array.from({ length: end - begin }, (_, index) => ({
          operator,
          block,
          row: begin + index,
          value: this.#kv.get(operator)?.get(block * block_rows + begin + index),
        })),
      ),
    );
    return { messages: [{ to: order.target, do: 'kv', order, values }], reports: [] };
  }

  #store(order: CopyOrder, values: KvValue[]): { messages: Message[]; reports: Report[] } {
    // Of a refactoring that is over: its memory may be another's by now.
    if (order.refactoring !== this.#refactoring) return nothing;
    for (const { operator, block, row, value } of values)
      if (value !== undefined) this.#put(operator, block * block_rows + row, value);
    return said({ kind: 'copied', order });
  }

  #frame(frame: Frame): { messages: Message[]; reports: Report[] } {
    if (this.held.take(frame.epoch) !== 'taken') return nothing;
    if (frame.kind === 'copies') {
      const own = frame.orders.filter(({ source }) => source === this.#name);
      const read = own.map((order) => this.#read(order));
      return { messages: [...read.flatMap(({ messages }) => messages), ...this.#onward(frame)], reports: [] };
    }
    const { begin, end } = this.held.serving!;
    const stage = frame.hops.find(({ device }) => device === this.#name)!;
    const wrong = [
      ...(stage.begin === begin && stage.end === end ? [] : [`${this.#name} computes for another layout`]),
      ...(frame.at === begin
        ? []
        : [`operator ${frame.at} comes at ${this.#name}, which begins at ${begin}`]),
      ...frame.segments.flatMap((segment) => this.#attend(segment)),
    ];
    const reports: Report[] = wrong.map((what) => ({ kind: 'wrong', what }));
    if (end === this.#n_operators)
      return {
        messages: [],
        reports: [...reports, { kind: 'result', epoch: frame.epoch, number: frame.number }],
      };
    return { messages: this.#onward({ ...frame, at: end }), reports };
  }

  #onward(frame: Frame): Message[] {
    const index = frame.hops.findIndex(({ device }) => device === this.#name);
    const next = frame.hops[index + 1];
    return next ? [{ to: next.device, do: 'frame', frame }] : [];
  }

  /** Reads every row of the sequence, and writes the new ones. */
  #attend({ id, past, prefixes, before, blocks }: Segment): string[] {
    const wrong: string[] = [];
    for (const operator of attentionIn(this.held.serving!, this.#n_operators)) {
      for (let row = 0; row < past; row++) {
        const value = this.#kv.get(operator)?.get(placeOf(blocks, row));
        if (value !== mix(operator, before[row]!))
          wrong.push(
            `${this.#name}: row ${row} of sequence ${id}, operator ${operator}, is ${value === undefined ? 'missing' : 'another'}`,
          );
      }
      for (const [index, prefix] of prefixes.entries())
        this.#put(operator, placeOf(blocks, past + index), mix(operator, prefix));
    }
    return wrong;
  }

  #put(operator: number, place: number, value: number): void {
    const rows = this.#kv.get(operator) ?? new Map<number, number>();
    this.#kv.set(operator, rows);
    rows.set(place, value);
  }
}

const nothing: { messages: Message[]; reports: Report[] } = { messages: [], reports: [] };

function said(report: Report): typeof nothing {
  return { messages: [], reports: [report] };
}

function placeOf(blocks: readonly number[], row: number): number {
  return blocks[Math.floor(row / block_rows)]! * block_rows + (row % block_rows);
}
