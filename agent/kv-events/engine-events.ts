/**
 * Events of KV caches as vLLM publishes them (`--kv-events-config`; vllm/distributed/kv_events.py). A message has a
 * topic, a number of its own, and a batch: `[time, events, rank?]`. In earlier versions an event is a list with its
 * kind first, in 0.32 a map with the kind as `type`.
 */
import { type Packed, readMessagePack } from './message-pack.ts';

export type EngineEvent =
  | {
      kind: 'stored';
      hashes: string[];
      parent: string | undefined;
      tokens: Packed[];
      block_tokens: number;
      plain: boolean;
    }
  | { kind: 'removed'; hashes: string[] }
  | { kind: 'cleared' };

export interface EngineEvents {
  /** Counted from 0 by the engine. */
  sequence: number;
  events: EngineEvent[];
}

const block_tokens_max = 65_536;
/** Members of an event in the order in which they stand in a list. */
const listed: Readonly<Record<string, readonly string[]>> = {
  BlockStored: [
    'block_hashes',
    'parent_block_hash',
    'token_ids',
    'block_size',
    'lora_id',
    'medium',
    'lora_name',
    'extra_keys',
    'group_idx',
  ],
  BlockRemoved: ['block_hashes', 'medium', 'group_idx'],
  AllBlocksCleared: [],
};

/** @throws Error where it is none */
export function readEngineEvents(frames: readonly Buffer[]): EngineEvents {
  const [, sequence, payload] = frames;
  if (frames.length !== 3 || sequence!.length !== 8)
    throw new Error('a message has not the frames of events');
  const batch = readMessagePack(payload!);
  const events = Array.isArray(batch) ? batch[1] : undefined;
  if (!Array.isArray(events)) throw new Error('a message holds no batch of events');
  return {
    sequence: Number(sequence!.readBigUInt64BE()),
    events: events.flatMap((event) => readEvent(event) ?? []),
  };
}

/** Undefined for what is not about the device's own cache: other media, other groups of layers. */
function readEvent(packed: Packed): EngineEvent | undefined {
  const { kind, member } = membersOf(packed);
  if (kind === 'AllBlocksCleared') return { kind: 'cleared' };
  const medium = member('medium') ?? null;
  const group = member('group_idx') ?? 0;
  if ((medium !== null && medium !== 'GPU') || group !== 0) return undefined;
  const hashes = listOf(member('block_hashes')).map(hashOf);
  if (kind === 'BlockRemoved') return { kind: 'removed', hashes };
  const parent = member('parent_block_hash') ?? null;
  const block_tokens = member('block_size');
  if (typeof block_tokens !== 'number' || !(block_tokens >= 1 && block_tokens <= block_tokens_max))
    throw new Error('blocks of an impossible size');
  return {
    kind: 'stored',
    hashes,
    parent: parent === null ? undefined : hashOf(parent),
    tokens: listOf(member('token_ids')),
    block_tokens,
    plain: isPlain(member),
  };
}

function membersOf(packed: Packed): { kind: string; member: (name: string) => Packed | undefined } {
  if (packed instanceof Map) {
    const kind = packed.get('type');
    if (typeof kind === 'string' && Object.hasOwn(listed, kind))
      return { kind, member: (name) => packed.get(name) };
  } else if (Array.isArray(packed)) {
    const [kind] = packed;
    if (typeof kind === 'string' && Object.hasOwn(listed, kind))
      return { kind, member: (name) => packed[1 + listed[kind]!.indexOf(name)] };
  }
  throw new Error('an event of no known kind');
}

/** Whether its blocks are of their tokens alone: no adapter, no image, no salt. */
function isPlain(member: (name: string) => Packed | undefined): boolean {
  if ((member('lora_id') ?? null) !== null || (member('lora_name') ?? null) !== null) return false;
  const extra = member('extra_keys') ?? null;
  return extra === null || (Array.isArray(extra) && extra.every((each) => each === null));
}

function listOf(packed: Packed | undefined): Packed[] {
  if (!Array.isArray(packed)) throw new Error('an event without the list that it is about');
  return packed;
}

/** A number in earlier versions, 32 bytes in later ones. */
function hashOf(packed: Packed): string {
  if (packed instanceof Uint8Array && packed.length <= 64) return Buffer.from(packed).toString('latin1');
  if (typeof packed === 'number' || typeof packed === 'bigint') return packed.toString();
  throw new Error('a block has no hash');
}
