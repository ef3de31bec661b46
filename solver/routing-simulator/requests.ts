/** Conversations as a router sees them: prompts that begin as the one before, in blocks. */
import { z } from 'zod';
import { exponential, normal, seededRandom } from '../simulator/random.ts';

export interface ReplayedRequest {
  at_s: number;
  input_tokens: number;
  output_tokens: number;
  /** Blocks of the prompt; each stands for everything up to its end. The last may be cut short by the prompt's end. */
  blocks: Uint32Array;
  /** Blocks that are full once the answer has ended, behind those of the prompt; where a trace does not say, none. */
  answer_blocks: Uint32Array;
}

export interface ReplayedTrace {
  name: string;
  block_tokens: number;
  requests: ReplayedRequest[];
}

const count = z.number().min(0);
const mooncakeSchema = z.object({
  timestamp: count,
  input_length: count,
  output_length: count,
  hash_ids: z.array(z.int().min(0)),
});

/**
 * Mooncake's trace (FAST '25): a JSON object a line with `timestamp` in ms, `input_length`, `output_length` and
 * `hash_ids`, one for each 512 tokens of the prompt.
 * @throws Error with the line that is none
 */
export function parseMooncake(text: string, name: string): ReplayedTrace {
  const requests = text
    .split('\n')
    .filter((line) => line !== '')
    .map((line, index) => {
      const asked = mooncakeSchema.safeParse(JSON.parse(line));
      if (!asked.success) throw new Error(`line ${index + 1} of ${name} is no request of Mooncake's trace`);
      const { timestamp, input_length, output_length, hash_ids } = asked.data;
      return {
        at_s: timestamp / 1000,
        input_tokens: input_length,
        output_tokens: output_length,
        blocks: Uint32Array.from(hash_ids),
        answer_blocks: new Uint32Array(0),
      };
    })
    .sort((a, b) => a.at_s - b.at_s);
  return { name, block_tokens: 512, requests };
}

export interface ConversationSettings {
  seed: number;
  conversations: number;
  /** Of new conversations. */
  per_s: number;
  system_prompts: number;
}

const block_tokens = 64;

/** Numbers from `min` to many times that, the median twice it: log-normal. */
function lengthFrom(random: () => number, min: number, spread: number): number {
  return Math.round(min * (1 + Math.exp(spread * normal(random))));
}

/**
 * Conversations by seed: a system prompt that many share (some are asked for more than others), turns with pauses as
 * people make them, answers that the next turn brings back.
 */
export function drawConversations(settings: ConversationSettings): ReplayedTrace {
  const { seed, conversations, per_s, system_prompts } = settings;
  const random = seededRandom(seed);
  let block = 0;
  const fresh = (count: number): number[] => Array.from({ length: count }, () => block++);
  const systems = Array.from({ length: system_prompts }, () => {
    const count = Math.ceil(lengthFrom(random, 400, 0.8) / block_tokens);
    return fresh(count);
  });
  const requests: ReplayedRequest[] = [];
  let begin_s = 0;
  for (let index = 0; index < conversations; index++) {
    begin_s += exponential(random) / per_s;
    // The k-th most asked for is asked for in proportion to 1/k.
    const rank = Math.floor(Math.exp(random() * Math.log(system_prompts + 1))) - 1;
    const ids = [...systems[Math.min(rank, system_prompts - 1)]!];
    let tokens = ids.length * block_tokens;
    let at_s = begin_s;
    for (let turn = 0; turn === 0 || random() < 0.82; turn++) {
      const input_tokens = tokens + lengthFrom(random, turn === 0 ? 200 : 60, 1);
      const output_tokens = lengthFrom(random, 120, 0.7);
      ids.push(...fresh(Math.floor(input_tokens / block_tokens) - ids.length));
      const blocks = Uint32Array.from(ids);
      tokens = input_tokens + output_tokens;
      const answered = fresh(Math.floor(tokens / block_tokens) - ids.length);
      ids.push(...answered);
      requests.push({ at_s, input_tokens, output_tokens, blocks, answer_blocks: Uint32Array.from(answered) });
      at_s += output_tokens * 0.02 + lengthFrom(random, 30, 1);
    }
  }
  requests.sort((a, b) => a.at_s - b.at_s);
  // Behind the last beginning there would be fewer and fewer.
  const whole = requests.filter(({ at_s }) => at_s <= begin_s);
  return { name: `conversations of seed ${seed}`, block_tokens, requests: whole };
}

/**
 * Tokens that are alive in the mean over a trace: of blocks that were computed and will be asked for again. Replicas
 * whose caches hold all of it together, each block once, miss nothing that a router could save.
 */
export function aliveSize_tokens({ requests, block_tokens: size }: ReplayedTrace): number {
  const first_s = new Map<number, number>();
  const last_s = new Map<number, number>();
  for (const { at_s, blocks } of requests)
    for (const id of blocks) {
      if (!first_s.has(id)) first_s.set(id, at_s);
      last_s.set(id, at_s);
    }
  let block_s = 0;
  for (const [id, from_s] of first_s) block_s += last_s.get(id)! - from_s;
  const whole_s = requests.at(-1)!.at_s - requests[0]!.at_s;
  return (size * block_s) / whole_s;
}

/**
 * Tokens that one cache must hold, giving up what was used least recently, to find a share of what there is to find:
 * the working set. Within a tenth.
 */
export function workingSet_tokens({ requests, block_tokens: size }: ReplayedTrace, share: number): number {
  const found = (blocks_max: number): number => {
    const cache = new Map<number, true>();
    let hits = 0;
    for (const { blocks, answer_blocks } of requests) {
      let at = 0;
      while (at < blocks.length && cache.has(blocks[at]!)) at++;
      hits += at;
      for (const id of [...blocks, ...answer_blocks].reverse()) {
        cache.delete(id);
        cache.set(id, true);
      }
      for (const id of cache.keys()) {
        if (cache.size <= blocks_max) break;
        cache.delete(id);
      }
    }
    return hits;
  };
  const wanted = share * found(Number.POSITIVE_INFINITY);
  let few = 1000;
  let enough = few;
  while (found(enough) < wanted) enough *= 2;
  while (enough > 1.1 * few) {
    const middle = Math.ceil(Math.sqrt(few * enough));
    if (found(middle) < wanted) few = middle;
    else enough = middle;
  }
  return size * enough;
}
