import { isGreedy, type ParsedRequest, scalarOf, wantsTokenIds } from '../request-body.ts';
import type { TokenUsage } from '../usage.ts';
import { AnswerSoFar } from './answer-so-far.ts';
import { requestFromIds } from './id-continuation.ts';
import {
  type ContinuedRequest,
  type ContinuingReplica,
  OtherAnswer,
  SpellError,
  type StreamJournal,
} from './journal.ts';
import type { JournalMemory } from './journal-memory.ts';
import { replayRequest } from './replay.ts';
import { type CompletionsPath, continuesText, requestAnew, requestFromText } from './text-continuation.ts';
import { promptTokenIds, withoutTokenIds } from './token-id-members.ts';

/** The prompt's tokens stand in one of the first events. */
const prompt_events = 2;
const first_bytes = 2048;
/** Events are kept as they are up to here, and then read. Lower: less memory; higher: fewer streams pay for reading. */
const raw_bytes_max = 32 * 1024;

/**
 * The journal of a stream from a wrapped engine. Events are only copied; they are read where they become many, or when
 * the stream is to be continued. How it is continued depends on what they say:
 *
 * ```
 *   nothing of a text is out ──────────► the whole request, anew
 *   all ids are known
 *     ├─ it draws by a seed ───────────► the whole request again, until it is where the client is (replay.ts)
 *     │   └─ that was another answer ──► as if it had none
 *     └─ else ─────────────────────────► token for token: a completion of prompt and answer ids (id-continuation.ts)
 *         └─ not in that way, greedy ──► the whole request again
 *   else ──────────────────────────────► behind the text (text-continuation.ts)
 * ```
 */
export class WrappedJournal implements StreamJournal {
  readonly cut_end = -1;
  readonly #memory: JournalMemory;
  readonly #path: CompletionsPath;
  readonly #began: { engine: string; precision: string };
  /** The client itself asked for token ids: they stay in what it gets. */
  readonly #tells_ids: boolean;
  readonly #so_far: AnswerSoFar;
  readonly #onPrompt: ((token_ids: Int32Array) => void) | undefined;
  #events = 0;
  #raw = Buffer.alloc(0);
  #length = 0;
  #held_bytes = 0;
  #why: string | undefined;
  /** Computed again, it was another answer: that is not tried once more. */
  #was_other = false;

  /**
   * @param began engine and precision of who began the stream: only with the same tokens of it mean the same
   * @param onPrompt is told the prompt's tokens, where the stream begins with them; absent: nobody wants to know
   */
  constructor(
    memory: JournalMemory,
    path: CompletionsPath,
    parsed: ParsedRequest,
    began: { engine: string; precision: string },
    onPrompt?: (token_ids: Int32Array) => void,
  ) {
    this.#memory = memory;
    this.#path = path;
    this.#began = began;
    this.#tells_ids = wantsTokenIds(parsed.scan);
    this.#onPrompt = onPrompt;
    this.#so_far = new AnswerSoFar(memory, parsed.choices);
  }

  see(bytes: Buffer, start: number, end: number): number {
    if (this.#onPrompt && this.#events++ < prompt_events) {
      const ids = promptTokenIds(bytes, start, end);
      if (ids) this.#onPrompt(ids);
    }
    if (this.#why === undefined) this.#keep(bytes, start, end);
    return this.#tells_ids ? start : withoutTokenIds(bytes, start, end);
  }

  /** Nothing more is left to be cut out. */
  take(): number {
    return -1;
  }

  accepts(engine: string | undefined): boolean {
    return continuesText(engine, this.#path);
  }

  get progress(): TokenUsage | undefined {
    if (this.#why !== undefined) return undefined;
    this.#read();
    const usage: TokenUsage = { completion_tokens: this.#so_far.tokens };
    const prompt_tokens = this.#so_far.choices[0]?.prompt_ids.length ?? 0;
    if (prompt_tokens > 0) usage.prompt_tokens = prompt_tokens;
    return usage;
  }

  async continued(parsed: ParsedRequest, replica: ContinuingReplica): Promise<ContinuedRequest | string> {
    if (this.#why === undefined) this.#read();
    if (this.#why !== undefined) return this.#why;
    const so_far = this.#so_far;
    // Of a stream that llama.cpp began no chunk has usage: others are not to begin with it in the middle.
    const engine = this.#began.engine === 'llama.cpp' ? undefined : replica.engine;
    const untouched = so_far.choices.every((choice) => choice.untouched);
    if (untouched && !(this.#tells_ids && so_far.tokens > 0)) return requestAnew(parsed, so_far, engine);
    const why: string[] = [];
    if (this.#means(replica) && so_far.choices.every(({ ids_known }) => ids_known)) {
      if (this.#drawsBySeed(parsed) && !this.#was_other) return this.#again(parsed, replica);
      const request = await this.#fromIds(parsed, replica);
      if (typeof request !== 'string') return request;
      if (isGreedy(parsed.scan))
        return this.#was_other ? 'there is no other way for it' : this.#again(parsed, replica);
      why.push(request);
    }
    const request = requestFromText(parsed, this.#path, so_far, engine);
    if (typeof request !== 'string') return request;
    return why.includes(request) ? request : [...why, request].join('; ');
  }

  release(): void {
    this.#memory.give(this.#held_bytes);
    this.#held_bytes = 0;
    this.#raw = Buffer.alloc(0);
    this.#length = 0;
    this.#so_far.release();
  }

  /**
   * vLLM draws for each choice of a request by a generator of its own, whatever else it computes (0.32,
   * `ParentRequest`); SGLang heeds a seed only where it was started so.
   */
  #drawsBySeed({ scan }: ParsedRequest): boolean {
    return this.#began.engine === 'vllm' && typeof scalarOf(scan, 'seed') === 'number' && !isGreedy(scan);
  }

  #again(parsed: ParsedRequest, { engine }: ContinuingReplica): ContinuedRequest {
    const { body, rewrite } = replayRequest(parsed, this.#so_far, engine);
    return {
      body,
      rewrite: (bytes, start, end) => {
        try {
          return rewrite(bytes, start, end);
        } catch (error) {
          if (error instanceof OtherAnswer) this.#was_other = true;
          throw error;
        }
      },
    };
  }

  async #fromIds(parsed: ParsedRequest, replica: ContinuingReplica): Promise<ContinuedRequest | string> {
    try {
      return await requestFromIds(parsed, this.#path, this.#so_far, replica);
    } catch (error) {
      // Engines may lack the path for it; that one is gone shows when it is asked to go on.
      if (error instanceof SpellError) return `its tokens could not be spelled: ${error.message}`;
      throw error;
    }
  }

  /** Whether token ids are the same to the replica as to who began. */
  #means({ engine, precision }: ContinuingReplica): boolean {
    return engine === this.#began.engine && precision === this.#began.precision;
  }

  #keep(bytes: Buffer, start: number, end: number): void {
    const length = end - start;
    if (length > raw_bytes_max) {
      this.#read();
      this.#so_far.read(bytes.toString('utf8', start, end));
    } else if (this.#length + length <= this.#raw.length || this.#makeRoom(length)) {
      bytes.copy(this.#raw, this.#length, start, end);
      this.#length += length;
    } else this.#giveUp();
    if (this.#so_far.incomplete) this.#giveUp();
  }

  #giveUp(): void {
    this.#why = 'the gateway has no memory left to keep it';
    this.release();
  }

  #makeRoom(bytes: number): boolean {
    if (this.#length + bytes > raw_bytes_max) this.#read();
    if (this.#length + bytes <= this.#raw.length) return true;
    const capacity = Math.max(first_bytes, this.#raw.length * 2, this.#length + bytes);
    const more_bytes = capacity - this.#raw.length;
    if (!this.#memory.take(more_bytes)) return false;
    this.#held_bytes += more_bytes;
    const more = Buffer.allocUnsafeSlow(capacity);
    this.#raw.copy(more, 0, 0, this.#length);
    this.#raw = more;
    return true;
  }

  #read(): void {
    const events = this.#raw.toString('utf8', 0, this.#length).split(/\r?\n\r?\n/);
    this.#length = 0;
    for (const event of events) this.#so_far.read(event);
    if (this.#so_far.incomplete) this.#giveUp();
  }
}
