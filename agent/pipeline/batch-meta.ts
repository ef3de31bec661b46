/**
 * Meta of a batch frame: what every stage is to do, whole and in order. Nothing of a sequence is kept at stages between
 * two batches but its keys and values: block tables come along with every batch, as runs (of few extents each),
 * so that no table can be stale after a cut-over.
 */
import type { StatelessSampling } from '../../spec/engine-contract.ts';
import type { SegmentRequest } from '../engine/segment-output.ts';
import { ByteReader } from './byte-reader.ts';
import { ByteWriter } from './byte-writer.ts';
import { damaged } from './frame.ts';

/** What is done with KV before a batch, in this order. */
export type KvCommand =
  | { do: 'copy'; from_block: number; to_block: number; rows: number }
  | { do: 'swap_out'; id: number; tokens: number; blocks: ArrayLike<number> }
  | { do: 'swap_in'; id: number; blocks: ArrayLike<number> }
  | { do: 'forget'; id: number };

/** A segment, and what the last stage is to read off its output rows. */
export type RemoteSegment = SegmentRequest;

/**
 * Time that a stage computed a batch, that it had waited for it since the one before, and that the batch had lain
 * before it, µs.
 */
export type StageTimes = [computed: number, waited: number, queued: number];
/** As they are written. */
const times_bytes = 12;

export interface BatchMeta {
  /** Of each stage, in their order; each fills its own in. */
  times_us: StageTimes[];
  /** Of each operator of the model, which its stage fills in; empty where none of them is to be measured. */
  operators_us: number[];
  /** See `BatchOutputs`; stages add to it. */
  damaged: number[];
  commands: KvCommand[];
  segments: RemoteSegment[];
}

const commandCodes = { copy: 0, swap_out: 1, swap_in: 2, forget: 3 } as const;
const commandNames = Object.keys(commandCodes) as (keyof typeof commandCodes)[];
const outputs = ['none', 'last', 'all'] as const;
const flags = { logits: 1, embeds: 2, samples: 4, sampling: 8, prompt: 16 } as const;
/** Of a whole segment: positions, flags and the number of its runs. */
const segment_bytes_min = 17;
const no_logprobs = -1;

export function encodeBatchMeta(batch: BatchMeta): Uint8Array {
  const { times_us, operators_us, damaged: ids, commands, segments } = batch;
  const writer = new ByteWriter();
  writeTimesOf(writer, times_us, operators_us);
  writer.u32(ids.length);
  for (const id of ids) writer.f64(id);
  writer.u32(commands.length);
  for (const command of commands) writeCommand(writer, command);
  writer.u32(segments.length);
  for (const segment of segments) writeSegment(writer, segment);
  return writer.bytes;
}

/** @throws HpcserveError E_STAGE_FRAME */
export function decodeBatchMeta(meta: Uint8Array): BatchMeta {
  const reader = new ByteReader(meta);
  const many = <T>(item_bytes_min: number, read: () => T): T[] =>
    Array.from({ length: reader.count(item_bytes_min) }, read);
  const times = readTimes(reader);
  const ids = many(8, () => reader.f64());
  const commands = many(9, () => readCommand(reader));
  const segments = many(segment_bytes_min, () => readSegment(reader));
  if (!reader.ended) throw damaged('something follows its segments');
  return { damaged: ids, commands, segments, ...times };
}

/** Writes the times of a stage into the meta of a batch that goes on. */
export function writeTimes(meta: Uint8Array, stage: number, times: StageTimes): void {
  const view = new DataView(meta.buffer, meta.byteOffset);
  for (const [index, time] of times.entries())
    view.setUint32(4 + times_bytes * stage + 4 * index, time, true);
}

/**
 * The same with what its operators took.
 * @param stages of the pipeline
 * @param begin number of the first of them in the model
 */
export function writeOperators(
  meta: Uint8Array,
  stages: number,
  begin: number,
  operators_us: readonly number[],
): void {
  const view = new DataView(meta.buffer, meta.byteOffset);
  const first = 4 + times_bytes * stages + 4;
  for (const [index, time] of operators_us.entries()) view.setUint32(first + 4 * (begin + index), time, true);
}

export function writeTimesOf(
  writer: ByteWriter,
  times_us: readonly StageTimes[],
  operators_us: readonly number[],
): void {
  writer.u32(times_us.length);
  for (const times of times_us) for (const time of times) writer.u32(time);
  writer.u32(operators_us.length);
  for (const time of operators_us) writer.u32(time);
}

export function readTimes(reader: ByteReader): Pick<BatchMeta, 'times_us' | 'operators_us'> {
  const times = (): StageTimes => [reader.u32(), reader.u32(), reader.u32()];
  return {
    times_us: Array.from({ length: reader.count(times_bytes) }, times),
    operators_us: Array.from({ length: reader.count(4) }, () => reader.u32()),
  };
}

function writeCommand(writer: ByteWriter, command: KvCommand): void {
  writer.u8(commandCodes[command.do]);
  switch (command.do) {
    case 'copy':
      writer.u32(command.from_block);
      writer.u32(command.to_block);
      writer.u32(command.rows);
      return;
    case 'swap_out':
      writer.f64(command.id);
      writer.u32(command.tokens);
      writeBlocks(writer, command.blocks);
      return;
    case 'swap_in':
      writer.f64(command.id);
      writeBlocks(writer, command.blocks);
      return;
    case 'forget':
      writer.f64(command.id);
  }
}

function readCommand(reader: ByteReader): KvCommand {
  const code = reader.u8();
  switch (commandNames[code]) {
    case 'copy':
      return { do: 'copy', from_block: reader.u32(), to_block: reader.u32(), rows: reader.u32() };
    case 'swap_out':
      return { do: 'swap_out', id: reader.f64(), tokens: reader.u32(), blocks: readBlocks(reader) };
    case 'swap_in':
      return { do: 'swap_in', id: reader.f64(), blocks: readBlocks(reader) };
    case 'forget':
      return { do: 'forget', id: reader.f64() };
    default:
      throw damaged(`it has a command ${code}`);
  }
}

function writeSegment(writer: ByteWriter, request: RemoteSegment): void {
  const { segment, embeds, samples, sampling, prompt } = request;
  const { past_tokens, rows, blocks, output, logits } = segment;
  writer.u32(past_tokens);
  writer.u32(rows);
  writer.u8(outputs.indexOf(output));
  const has = { logits, embeds, samples, sampling: sampling !== undefined, prompt: prompt !== undefined };
  let bits = 0;
  for (const [name, bit] of Object.entries(flags)) if (has[name as keyof typeof has]) bits |= bit;
  writer.u32(bits);
  writeBlocks(writer, blocks);
  if (sampling) writeSampling(writer, sampling);
  if (!prompt) return;
  writer.u32(prompt.alternatives);
  writer.u32(prompt.targets.length);
  for (const token of prompt.targets) writer.u32(token);
}

function readSegment(reader: ByteReader): RemoteSegment {
  const past_tokens = reader.u32();
  const rows = reader.u32();
  const output = outputs[reader.u8()];
  if (output === undefined || rows === 0) throw damaged('a segment of it says nothing that can be done');
  const bits = reader.u32();
  const blocks = readBlocks(reader);
  const request: RemoteSegment = {
    segment: { past_tokens, rows, blocks, output, logits: (bits & flags.logits) !== 0 },
    embeds: (bits & flags.embeds) !== 0,
    samples: (bits & flags.samples) !== 0,
  };
  if (bits & flags.sampling) request.sampling = readSampling(reader);
  if (bits & flags.prompt) {
    const alternatives = reader.u32();
    const targets = Int32Array.from({ length: reader.count(4) }, () => reader.u32());
    request.prompt = { alternatives, targets };
  }
  return request;
}

function writeSampling(writer: ByteWriter, sampling: StatelessSampling): void {
  writer.f64(sampling.temperature);
  writer.f64(sampling.top_p);
  writer.f64(sampling.min_p);
  writer.f64(sampling.typical_p);
  writer.f64(sampling.seed);
  writer.u32(sampling.top_k);
  writer.u32(sampling.choice);
  writer.i32(sampling.logprobs ?? no_logprobs);
}

function readSampling(reader: ByteReader): StatelessSampling {
  const sampling: StatelessSampling = {
    temperature: reader.f64(),
    top_p: reader.f64(),
    min_p: reader.f64(),
    typical_p: reader.f64(),
    seed: reader.f64(),
    top_k: reader.u32(),
    choice: reader.u32(),
  };
  const logprobs = reader.i32();
  if (logprobs !== no_logprobs) sampling.logprobs = logprobs;
  return sampling;
}

/** As runs of numbers that follow one another: first, count. */
function writeBlocks(writer: ByteWriter, blocks: ArrayLike<number>): void {
  const runs: [first: number, count: number][] = [];
  for (let index = 0; index < blocks.length; index++) {
    const block = blocks[index]!;
    const last = runs.at(-1);
    if (last && last[0] + last[1] === block) last[1]++;
    else runs.push([block, 1]);
  }
  writer.u32(runs.length);
  for (const [first, count] of runs) {
    writer.u32(first);
    writer.u32(count);
  }
}

/** Of one sequence, at most: 64 Mi tokens. */
const blocks_max = 2 ** 22;

function readBlocks(reader: ByteReader): number[] {
  const blocks: number[] = [];
  for (let runs = reader.count(8); runs > 0; runs--) {
    const first = reader.u32();
    const count = reader.u32();
    if (blocks.length + count > blocks_max) throw damaged('a sequence of it has more blocks than any has');
    for (let index = 0; index < count; index++) blocks.push(first + index);
  }
  return blocks;
}
