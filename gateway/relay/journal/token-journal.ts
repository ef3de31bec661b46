import { type ContinuedChoice, type ContinueRequest, continuation } from '../../../spec/wire.ts';
import { spliced } from '../body-edits.ts';
import { answersOf, memberEdit, type ParsedRequest, usageEdits } from '../request-body.ts';
import type { TokenUsage } from '../usage.ts';
import type { ContinuedRequest, ContinuingReplica, StreamJournal } from './journal.ts';
import type { JournalMemory } from './journal-memory.ts';
import { JournalTokens } from './journal-tokens.ts';

const mark = Buffer.from(',"hpcserve_');
const simpleTail = `,"${continuation.token_ids}":[`;
const ZERO = 48;
const COMMA = 44;
const CLOSE_BRACKET = 93;
const CLOSE_BRACE = 125;

/** What the first chunk of a native replica says, beside its tokens. */
interface Beginning extends Pick<ContinueRequest, 'rendered_ms' | 'prompt_digest' | 'cached_tokens'> {
  id: string;
  created: number;
  seed: number;
  prompt_tokens: number;
}

interface Choice {
  tokens: JournalTokens;
  opened: boolean;
  finished: boolean;
  withheld: number;
}

/**
 * The journal of a stream from a native replica: the token ids of every choice, four bytes each, taken from the
 * members that such a replica adds to its chunks (`continuation` in spec/wire.ts). They stand at the end of a
 * chunk and are cut out of what the client gets; the other bytes stay as they are.
 */
export class TokenJournal implements StreamJournal {
  cut_end = -1;
  readonly #memory: JournalMemory;
  readonly #precision: string;
  readonly #choices_max: number;
  readonly #choices: Choice[] = [];
  #beginning: Beginning | undefined;
  #why: string | undefined;

  /**
   * @param precision of the replica's weights: others would go on with another model's mind
   * @param choices_max that were asked for: what is told of others is of no use
   */
  constructor(memory: JournalMemory, precision: string, choices_max: number) {
    this.#memory = memory;
    this.#precision = precision;
    this.#choices_max = choices_max;
  }

  take(bytes: Buffer, start: number, end: number): number {
    const at = bytes.indexOf(mark, start);
    if (at === -1 || at >= end) {
      if (!this.#beginning) this.#why ??= 'its replica does not tell its tokens';
      return -1;
    }
    const close = bytes.lastIndexOf(CLOSE_BRACE, end - 1);
    this.cut_end = close;
    if (this.#beginning && this.#takeSimple(bytes, at, close)) return at;
    this.#takeWhole(bytes, start, at, close);
    return at;
  }

  accepts(engine: string | undefined, precision: string): boolean {
    return engine === 'native' && precision === this.#precision;
  }

  get progress(): TokenUsage | undefined {
    if (!this.#beginning) return undefined;
    const completion_tokens = this.#choices.reduce((sum, { tokens }) => sum + tokens.length, 0);
    return { prompt_tokens: this.#beginning.prompt_tokens, completion_tokens };
  }

  async continued(
    parsed: ParsedRequest,
    _replica?: ContinuingReplica,
    kv?: string,
  ): Promise<ContinuedRequest | string> {
    if (this.#why !== undefined) return this.#why;
    const beginning = this.#beginning;
    if (!beginning) return 'its replica did not tell its tokens';
    const { scan } = parsed;
    if (scan.members.has(continuation.continue)) return 'the request itself continues an answer';
    const { seed, prompt_tokens: _, ...rest } = beginning;
    const choices = Array.from({ length: answersOf(scan) }, (_, index): ContinuedChoice => {
      const choice = this.#choices[index];
      if (!choice) return { token_ids: [] };
      const { tokens, opened, finished, withheld } = choice;
      return { token_ids: tokens.toArray(), opened, finished, withheld };
    });
    const value: ContinueRequest = { choices, ...rest };
    if (kv !== undefined) value.kv = kv;
    // The same bytes and, behind them, what is to count: of equal keys the last one does.
    const added = `"seed":${seed},"${continuation.continue}":${JSON.stringify(value)}`;
    return { body: spliced(scan.bytes, [...usageEdits(parsed, 'native'), memberEdit(scan, added)]) };
  }

  release(): void {
    // Holes, where a choice has not begun, are skipped.
    this.#choices.forEach(({ tokens }) => void tokens.release());
    this.#choices.length = 0;
  }

  /** By far the most chunks only have token ids of choice 0; read without parsing. False where this is another. */
  #takeSimple(bytes: Buffer, at: number, close: number): boolean {
    let offset = at + simpleTail.length;
    if (bytes[offset - 1] !== 91 || bytes.toString('latin1', at, offset) !== simpleTail) return false;
    if (bytes[close - 1] !== CLOSE_BRACKET) return false;
    const choice = this.#choice(0);
    choice.opened = true;
    for (let id = 0, digits = 0; offset < close; offset++) {
      const byte = bytes[offset]!;
      if (byte !== COMMA && byte !== CLOSE_BRACKET) {
        id = id * 10 + byte - ZERO;
        digits++;
        continue;
      }
      if (digits > 0) {
        this.#push(choice, id);
        choice.withheld = 0;
      }
      id = digits = 0;
    }
    return true;
  }

  #takeWhole(bytes: Buffer, start: number, at: number, close: number): void {
    const said = JSON.parse(`{${bytes.toString('utf8', at + 1, close)}}`) as Record<string, unknown>;
    if (!this.#beginning) {
      const chunk = JSON.parse(`${bytes.toString('utf8', bytes.indexOf(123, start), at)}}`) as {
        id: string;
        created: number;
      };
      this.#beginning = {
        id: chunk.id,
        created: chunk.created,
        seed: said[continuation.seed] as number,
        prompt_tokens: said[continuation.prompt_tokens] as number,
        ...pick(said, 'rendered_ms'),
        ...pick(said, 'prompt_digest'),
        ...pick(said, 'cached_tokens'),
      };
    }
    const index = (said[continuation.choice] as number | undefined) ?? 0;
    if (!Number.isInteger(index) || index < 0 || index >= this.#choices_max) {
      this.#why ??= 'its replica told of a choice that nobody asked for';
      return;
    }
    const choice = this.#choice(index);
    const token_ids = (said[continuation.token_ids] as number[] | undefined) ?? [];
    choice.opened = true;
    if (said[continuation.finished] === true) choice.finished = true;
    if (token_ids.length > 0) choice.withheld = (said[continuation.withheld] as number | undefined) ?? 0;
    for (const token of token_ids) this.#push(choice, token);
  }

  #choice(index: number): Choice {
    this.#choices[index] ??= {
      tokens: new JournalTokens(this.#memory),
      opened: false,
      finished: false,
      withheld: 0,
    };
    return this.#choices[index];
  }

  #push(choice: Choice, token: number): void {
    if (choice.tokens.push(token)) return;
    this.#why ??= 'the gateway has no memory left to keep its tokens';
    this.#choices.forEach(({ tokens }) => void tokens.release());
  }
}

function pick<K extends 'rendered_ms' | 'prompt_digest' | 'cached_tokens'>(
  said: Record<string, unknown>,
  name: K,
): Partial<Beginning> {
  const value = said[continuation[name]];
  return value === undefined ? {} : { [name]: value };
}
