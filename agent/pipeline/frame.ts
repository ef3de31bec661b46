/**
 * What flows around a pipeline: frames from the coordinator to the second stage, from stage to stage, and from the last
 * one back to the coordinator. Numbers are little-endian.
 *
 *      0  u32  magic            16  u32  bytes of meta
 *      4  u16  protocol         20  u32  bytes of payload
 *      6  u16  kind             24  u32  CRC-32 of meta, padding and payload
 *      8  u32  epoch            28  u32  CRC-32 of these 28 bytes
 *     12  u32  number           32       meta, zeros to a multiple of 8, payload
 *
 * Meta says what is to be done, payload is hidden states or logits: f32, where it lies, without another copy.
 */
import { crc32 } from 'node:zlib';
import type { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';

export const frame_header_bytes = 32;
/**
 * Two stages of different protocols do not talk to each other. Where magic, protocol and the checksum of the header
 * are, no protocol changes: so each can say of the other what it is.
 */
const pipeline_protocol = 3;
/** Of meta and payload together: a chunk of 4096 rows of 16,384 elements. Higher: a damaged length asks for more. */
const frame_bytes_max = 2 ** 28;
/** Of a frame, what is left for meta beside the longest payload. Lower: larger batches; higher: more blocks. */
const meta_share = 1 / 16;
/** Of a payload. */
export const frame_floats_max = ((1 - meta_share) * frame_bytes_max) / 4;
const magic = 0x50_53_50_48; // "HPSP"

export const frameKinds = {
  open: 1,
  begin: 2,
  batch: 3,
  result: 4,
  failed: 5,
  alive: 6,
  // While the layout changes: see `layout-messages.ts`.
  copies: 7,
  kv: 8,
  copied: 9,
  release: 10,
  // Between two neighbours alone: see `shared-frames.ts`, `fabric-frames.ts`.
  shared: 11,
  parcel: 12,
  taken: 13,
  fabric: 14,
} as const;
export type FrameKind = keyof typeof frameKinds;
const kindNames = new Map(Object.entries(frameKinds).map(([name, value]) => [value, name as FrameKind]));

/** Its buffer is its own, so that it can be handed over. */
export type FrameBytes = Uint8Array<ArrayBuffer>;

export interface FrameHeader {
  kind: FrameKind;
  /** Raised with every cut-over: what is of another one is refused. */
  epoch: number;
  /** Counts the frames of an epoch that the coordinator sends; an answer has the number of what it answers. */
  number: number;
}

export interface Frame extends FrameHeader {
  meta: Uint8Array<ArrayBuffer>;
  payload: Float32Array<ArrayBuffer>;
}

/**
 * A frame with room for a payload, which is to be filled before `sealFrame`.
 * @throws HpcserveError E_ENGINE_OPTIONS: no frame is as long
 */
export function allocateFrame(
  header: FrameHeader,
  meta: Uint8Array,
  n_floats: number,
): Frame & { bytes: FrameBytes } {
  const begin = payloadOffset(meta.length);
  const length = begin + 4 * n_floats;
  if (length > frame_bytes_max)
    throw new HpcserveError('E_ENGINE_OPTIONS', {
      what: `what goes to the next stage of a pipeline has ${length} bytes`,
      because: `a frame has ${frame_bytes_max} at most`,
      try: 'lower prefill_chunk_tokens or max_sequences',
    });
  const bytes = new Uint8Array(length);
  bytes.set(meta, frame_header_bytes);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, magic, true);
  view.setUint16(4, pipeline_protocol, true);
  view.setUint16(6, frameKinds[header.kind], true);
  view.setUint32(8, header.epoch, true);
  view.setUint32(12, header.number, true);
  view.setUint32(16, meta.length, true);
  view.setUint32(20, 4 * n_floats, true);
  return {
    kind: header.kind,
    epoch: header.epoch,
    number: header.number,
    bytes,
    meta: bytes.subarray(frame_header_bytes, frame_header_bytes + meta.length),
    payload: new Float32Array(bytes.buffer, begin, n_floats),
  };
}

/** Writes the checksums; nothing may be changed after that. */
export function sealFrame({ bytes }: { bytes: FrameBytes }): FrameBytes {
  const view = new DataView(bytes.buffer);
  view.setUint32(24, crc32(bytes.subarray(frame_header_bytes)), true);
  view.setUint32(28, crc32(bytes.subarray(0, 28)), true);
  return bytes;
}

export function encodeFrame(header: FrameHeader, meta: Uint8Array, payload?: Float32Array): FrameBytes {
  const frame = allocateFrame(header, meta, payload?.length ?? 0);
  if (payload) frame.payload.set(payload);
  return sealFrame(frame);
}

/** A frame whose meta is JSON. */
export function encodeJsonFrame(header: FrameHeader, meta: unknown): FrameBytes {
  return encodeFrame(header, Buffer.from(JSON.stringify(meta)));
}

/**
 * Bytes of the whole frame that begins with this header.
 * @throws HpcserveError E_STAGE_FRAME; E_STAGE_MISMATCH: it is of another protocol
 */
export function length_bytes(header: Uint8Array): number {
  const view = new DataView(header.buffer, header.byteOffset, frame_header_bytes);
  if (view.getUint32(0, true) !== magic) throw damaged('it does not begin like one');
  if (view.getUint32(28, true) !== crc32(header.subarray(0, 28)))
    throw damaged('the checksum of its header is another');
  const protocol = view.getUint16(4, true);
  if (protocol !== pipeline_protocol)
    throw new HpcserveError('E_STAGE_MISMATCH', {
      what: 'two stages of a pipeline are of different versions of hpcserve',
      because: `a neighbour's frames are of protocol ${protocol}, and this program speaks ${pipeline_protocol}`,
    });
  const bytes = payloadOffset(view.getUint32(16, true)) + view.getUint32(20, true);
  if (bytes > frame_bytes_max) throw damaged(`it says that it has ${bytes} bytes`);
  return bytes;
}

/** Buffers of frames whose checksum was found right where they came in. */
const checked = new WeakSet<ArrayBuffer>();

/** Nothing looks at its checksum again in this thread, nor may anything change it. */
export function noteChecked({ buffer }: FrameBytes): void {
  checked.add(buffer);
}

export function isChecked({ buffer }: FrameBytes): boolean {
  return checked.has(buffer);
}

/**
 * @param bytes whole frame, in a buffer of its own
 * @throws HpcserveError E_STAGE_FRAME: it is none, or was damaged on its way; E_STAGE_MISMATCH as `length_bytes`
 */
export function decodeFrame(bytes: FrameBytes): Frame {
  if (bytes.byteOffset !== 0 || bytes.length < frame_header_bytes || length_bytes(bytes) !== bytes.length)
    throw damaged(`${bytes.length} bytes are not one whole frame`);
  const view = new DataView(bytes.buffer);
  if (!isChecked(bytes) && view.getUint32(24, true) !== crc32(bytes.subarray(frame_header_bytes)))
    throw damaged('its checksum is another');
  const kind = kindNames.get(view.getUint16(6, true) as never);
  if (kind === undefined) throw damaged(`its kind is ${view.getUint16(6, true)}`);
  const meta_bytes = view.getUint32(16, true);
  return {
    kind,
    epoch: view.getUint32(8, true),
    number: view.getUint32(12, true),
    meta: bytes.subarray(frame_header_bytes, frame_header_bytes + meta_bytes),
    payload: new Float32Array(bytes.buffer, payloadOffset(meta_bytes), view.getUint32(20, true) / 4),
  };
}

/**
 * Meta that is JSON, as the schema has it.
 * @throws HpcserveError E_STAGE_FRAME: its bytes came as they were sent, and mean nothing here
 */
export function metaOf<T>({ kind, meta }: Frame, schema: z.ZodType<T>): T {
  let json: unknown;
  try {
    json = JSON.parse(Buffer.from(meta.buffer, meta.byteOffset, meta.length).toString());
  } catch {
    throw damaged(`the meta of its ${kind} is no JSON`);
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw damaged(`the meta of its ${kind} is another: ${issue?.path.join('.')}: ${issue?.message}`);
}

/** What a frame is, by its header alone: also of one that was damaged behind it. */
export function kindOf(bytes: FrameBytes): FrameKind | undefined {
  return kindNames.get(new DataView(bytes.buffer).getUint16(6, true) as never);
}

export function damaged(because: string): HpcserveError {
  return new HpcserveError('E_STAGE_FRAME', { what: 'a frame of a pipeline cannot be used', because });
}

function payloadOffset(meta_bytes: number): number {
  return frame_header_bytes + 8 * Math.ceil(meta_bytes / 8);
}
