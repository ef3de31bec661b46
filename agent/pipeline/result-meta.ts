/**
 * Meta of a result frame: per segment the token that was chosen at the last stage, or where in the payload its logits
 * or hidden rows lie. A token is a few bytes, its row of logits n_vocab floats: only sequences whose choice depends on
 * what was chosen before (penalties, grammars) get the row.
 */
import type { SampledToken } from '../../spec/engine-contract.ts';
import type { SegmentOutput } from '../engine/segment-output.ts';
import { readTimes, type StageTimes, writeTimesOf } from './batch-meta.ts';
import { ByteReader } from './byte-reader.ts';
import { ByteWriter } from './byte-writer.ts';
import { damaged } from './frame.ts';

export interface ResultMeta {
  times_us: StageTimes[];
  /** Of each operator of the model; empty where none of them was measured. */
  operators_us: number[];
  /** See `BatchOutputs`. */
  damaged: number[];
  segments: SegmentOutput[];
}

const flags = { chosen: 1, error: 2, logits: 4, hidden: 8, prompt: 16 } as const;
const token_flags = { logprob: 1, top: 2 } as const;

/** @returns the meta, and the floats that its payload consists of, one after the other */
export function encodeResult({ times_us, operators_us, damaged: ids, segments }: ResultMeta): {
  meta: Uint8Array;
  payload: Float32Array[];
} {
  const writer = new ByteWriter();
  const payload: Float32Array[] = [];
  writeTimesOf(writer, times_us, operators_us);
  writer.u32(ids.length);
  for (const id of ids) writer.f64(id);
  writer.u32(segments.length);
  for (const segment of segments) {
    let bits = 0;
    if (segment.chosen) bits |= flags.chosen;
    if (segment.error !== undefined) bits |= flags.error;
    if (segment.logits) bits |= flags.logits;
    if (segment.hidden) bits |= flags.hidden;
    if (segment.prompt_logprobs) bits |= flags.prompt;
    writer.u8(bits);
    if (segment.chosen) writeToken(writer, segment.chosen);
    if (segment.error !== undefined) writer.text(segment.error);
    for (const floats of [segment.logits, segment.hidden]) {
      if (!floats) continue;
      writer.u32(floats.length);
      payload.push(floats);
    }
    if (!segment.prompt_logprobs) continue;
    writer.u32(segment.prompt_logprobs.length);
    for (const token of segment.prompt_logprobs) writeToken(writer, token);
  }
  return { meta: writer.bytes, payload };
}

/** @throws HpcserveError E_STAGE_FRAME */
export function decodeResult(meta: Uint8Array, payload: Float32Array): ResultMeta {
  const reader = new ByteReader(meta);
  let at = 0;
  const floats = (): Float32Array => {
    const begin = at;
    at += reader.u32();
    if (at > payload.length) throw damaged('its payload ends before what it says');
    return payload.subarray(begin, at);
  };
  const times = readTimes(reader);
  const ids = Array.from({ length: reader.count(8) }, () => reader.f64());
  const segments = Array.from({ length: reader.count(1) }, (): SegmentOutput => {
    const bits = reader.u8();
    const segment: SegmentOutput = {};
    if (bits & flags.chosen) segment.chosen = readToken(reader);
    if (bits & flags.error) segment.error = reader.text();
    if (bits & flags.logits) segment.logits = floats();
    if (bits & flags.hidden) segment.hidden = floats();
    if (bits & flags.prompt)
      segment.prompt_logprobs = Array.from({ length: reader.count(5) }, () => readToken(reader));
    return segment;
  });
  if (!reader.ended || at !== payload.length) throw damaged('something follows its segments');
  return { damaged: ids, segments, ...times };
}

function writeToken(writer: ByteWriter, { token, logprob, top }: SampledToken): void {
  writer.u32(token);
  writer.u8((logprob === undefined ? 0 : token_flags.logprob) | (top ? token_flags.top : 0));
  if (logprob !== undefined) writer.f64(logprob);
  if (!top) return;
  writer.u32(top.length);
  for (const other of top) {
    writer.u32(other.token);
    writer.f64(other.logprob);
  }
}

function readToken(reader: ByteReader): SampledToken {
  const sampled: SampledToken = { token: reader.u32() };
  const bits = reader.u8();
  if (bits & token_flags.logprob) sampled.logprob = reader.f64();
  if (bits & token_flags.top)
    sampled.top = Array.from({ length: reader.count(12) }, () => ({
      token: reader.u32(),
      logprob: reader.f64(),
    }));
  return sampled;
}
