/**
 * A part of a trace through a real router with the policy `cache_aware`, before servers that only count: whether it
 * chooses as the model does with which ours is compared.
 */
import { createHash } from 'node:crypto';
import type {
  CacheAwareModel,
  cacheAware,
  EqualReplicas,
} from '../../solver/routing-simulator/other-routers.ts';
import type { ReplayedRequest, ReplayedTrace } from '../../solver/routing-simulator/requests.ts';
import type { CountingReplicas } from './counting-replicas.ts';

/** A token of an answer takes so long: who is still busy when the next request comes. */
const token_s = 0.02;
/** Characters of a block: enough that two blocks begin differently. */
const block_characters = 16;

export interface Agreement {
  requests: number;
  /** By why the model would choose: how often, and how often the router chose one of those that it would. */
  by: Record<EqualReplicas['why'], { chosen: number; agreed: number }>;
  /** Share of the prompts' blocks that replicas would still have, as the router chose and as the model would have. */
  found: number;
  found_as_modelled: number;
}

/** What the router sends, and how it is asked. */
export interface RouterUnderTest {
  url: string;
  replicas: CountingReplicas;
}

/** A prompt in which blocks are the same where they are the same in the trace, as a router of texts sees it. */
export function promptOf({ blocks }: Pick<ReplayedRequest, 'blocks'>): string {
  return [...blocks]
    .map((id) => createHash('sha256').update(`${id}`).digest('hex').slice(0, block_characters))
    .join('');
}

/**
 * Sends the requests in their order, each once those that have ended by then are answered. The model is told whom the
 * router chose, so that both see the same at each request; beside it, another goes its own way.
 *
 * @param blocks_max that one replica holds; what was used least recently goes first
 */
export async function compareChoices(
  { url, replicas }: RouterUnderTest,
  trace: ReplayedTrace,
  model: CacheAwareModel,
  alone: ReturnType<typeof cacheAware>,
  blocks_max: number,
): Promise<Agreement> {
  const count = replicas.urls.length;
  const by = { loads: none(), match: none(), fallback: none() };
  const [real, modelled] = [new Followed(count, blocks_max), new Followed(count, blocks_max)];
  const running: { number: number; ends_s: number; answered: Promise<void> }[] = [];
  const end = async (until_s: number): Promise<void> => {
    const over = running.filter(({ ends_s }) => ends_s <= until_s);
    for (const { number } of over) replicas.release(number);
    await Promise.all(over.map(({ answered }) => answered));
    for (const one of over) running.splice(running.indexOf(one), 1);
    for (const each of [real, modelled]) each.end(until_s);
  };
  for (const [number, request] of trace.requests.entries()) {
    const { at_s, blocks } = request;
    const ends_s = at_s + request.output_tokens * token_s;
    await end(at_s);
    const would = model.candidates(blocks, real.seen());
    const arrived = replicas.expect(number);
    const answered = ask(url, number, promptOf(request));
    const chosen = await Promise.race([arrived, answered.then(() => unexpected(number))]);
    running.push({ number, ends_s, answered });
    by[would.why].chosen++;
    if (would.replicas.includes(chosen)) by[would.why].agreed++;
    model.sent(chosen, blocks, at_s);
    real.take(chosen, request, ends_s);
    modelled.take(alone.choose(request, modelled.seen(), at_s), request, ends_s);
  }
  await end(Number.POSITIVE_INFINITY);
  return { requests: trace.requests.length, by, found: real.found, found_as_modelled: modelled.found };
}

const none = (): { chosen: number; agreed: number } => ({ chosen: 0, agreed: 0 });

async function ask(url: string, number: number, prompt: string): Promise<void> {
  const answer = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'bench', prompt, max_tokens: 1, user: `${number}` }),
  });
  const said = await answer.text();
  if (answer.status !== 200) throw new Error(`the router answers ${answer.status}: ${said.slice(0, 200)}`);
}

function unexpected(number: number): never {
  throw new Error(`the router answered request ${number} without asking a replica`);
}

/** Replicas under one way of choosing: what each runs and still has. */
class Followed {
  readonly #blocks_max: number;
  readonly #caches: Map<number, true>[];
  readonly #running: number[][];
  #asked = 0;
  #hits = 0;

  constructor(count: number, blocks_max: number) {
    this.#blocks_max = blocks_max;
    this.#caches = Array.from({ length: count }, () => new Map());
    this.#running = Array.from({ length: count }, () => []);
  }

  get found(): number {
    return this.#hits / this.#asked;
  }

  seen(): { running: number; waiting: number }[] {
    return this.#running.map(({ length }) => ({ running: length, waiting: 0 }));
  }

  end(until_s: number): void {
    for (const [index, ends_s] of this.#running.entries())
      this.#running[index] = ends_s.filter((each_s) => each_s > until_s);
  }

  take(replica: number, { blocks, answer_blocks }: ReplayedRequest, ends_s: number): void {
    this.#running[replica]!.push(ends_s);
    const cache = this.#caches[replica]!;
    let length = 0;
    while (length < blocks.length && cache.has(blocks[length]!)) length++;
    this.#asked += blocks.length;
    this.#hits += length;
    // What stands behind goes first.
    for (const id of [...blocks, ...answer_blocks].reverse()) {
      cache.delete(id);
      cache.set(id, true);
    }
    for (const id of cache.keys()) {
      if (cache.size <= this.#blocks_max) break;
      cache.delete(id);
    }
  }
}

/** Lines for people. */
export function describeAgreement(
  fallback: string,
  { requests, by, found, found_as_modelled }: Agreement,
): string[] {
  const kinds = Object.values(by);
  const agreed = kinds.reduce((sum, each) => sum + each.agreed, 0);
  const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;
  const parts = [
    ['the longest match', by.match],
    ['even loads', by.loads],
    [`else ${fallback === 'least-load' ? 'the least load' : 'the smallest tree'}`, by.fallback],
  ] as const;
  return [
    `modelled with ${fallback}: ${percent(agreed / requests)} of its choices (${parts
      .map(([words, { chosen, agreed: same }]) => `${words} ${same} of ${chosen}`)
      .join(', ')})`,
    `blocks of prompts found as it chose ${percent(found)}, as modelled ${percent(found_as_modelled)}`,
  ];
}
