import { Worker } from 'node:worker_threads';
import type Database from 'better-sqlite3';
import { compiledFile } from '../../host/programs.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { ledgerError } from '../ledger-error.ts';
import { type SummedGroups, sumSteps } from '../usage.ts';
import { inSlices } from './in-slices.ts';
import { queryOf, type UsageQuestion } from './question.ts';
import type {
  AskedQuestion,
  FromQuestionThread,
  QuestionThreadData,
  ToQuestionThread,
} from './question-messages.ts';

const threadFile = compiledFile('ledger/questions/question-thread.js');
/** Questions that are answered side by side. Lower: less memory; higher: a long one holds up fewer others. */
const atOnce_max = 4;
/** Questions of one asker that wait. Lower: refused sooner; higher: longer waits. */
const line_max = 8;
/** The same of all askers. */
const waiting_max = 256;
/** Most questions take less. */
const retryAfter_s = 2;

export interface UsageQuestionsOptions {
  ledger: string;
  /** Of the ledger's writer; the sums are made on it, in slices, where no other connection can read beside it. */
  db: Database.Database;
  isReadBeside: boolean;
  /** What was answered so far is in the tables when it resolves. */
  settled(): Promise<void>;
}

interface Waiting {
  question: UsageQuestion;
  resolve(answer: Uint8Array): void;
  reject(error: unknown): void;
}

type Answered = Pick<Waiting, 'resolve' | 'reject'>;

/**
 * Questions about a ledger, of askers who each have one at a time answered; their others wait in line. A thread sums up
 * and writes the answers, so that the event loop of who asks is free however large the ledger is.
 *
 * ```
 *   ask ─► line of its asker ─► settled ─┬───────────────────────────────► thread: sums, rows, text ─► bytes
 *          (or E_KEY_QUESTIONS)          └─ no other may read: sums here ─► thread:       rows, text ─► bytes
 * ```
 */
export class UsageQuestions {
  readonly #options: UsageQuestionsOptions;
  /** By asker, who has to wait the least first. */
  readonly #lines = new Map<string, Waiting[]>();
  readonly #running = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();
  #thread: Worker | undefined;
  /** What the thread was asked, by number. */
  readonly #asked = new Map<number, Answered>();
  #last_id = 0;

  constructor(options: UsageQuestionsOptions) {
    this.#options = options;
  }

  /** @returns UTF-8 @throws E_KEY_QUESTIONS, E_GATEWAY_DRAINING, E_LEDGER_*; later too */
  async ask(asker: string, question: UsageQuestion): Promise<Uint8Array> {
    this.#closing.signal.throwIfAborted();
    const line = this.#lines.get(asker) ?? [];
    const waiting = [...this.#lines.values()].reduce((sum, { length }) => sum + length, 0);
    if (line.length >= line_max || waiting >= waiting_max) throw tooMany(line.length, waiting);
    return await new Promise((resolve, reject) => {
      line.push({ question, resolve, reject });
      this.#lines.set(asker, line);
      this.#next();
    });
  }

  /** Gives up what is not answered. */
  async close(): Promise<void> {
    const reason = new HpcserveError('E_GATEWAY_DRAINING', { what: 'the gateway ends before its answer' });
    this.#closing.abort(reason);
    for (const line of this.#lines.values()) for (const { reject } of line) reject(reason);
    this.#lines.clear();
    const thread = this.#thread;
    if (thread) {
      thread.ref();
      const ended = new Promise((resolve) => thread.once('exit', resolve));
      thread.postMessage('end' satisfies ToQuestionThread);
      await ended;
    }
    await Promise.all(this.#running.values());
  }

  #next(): void {
    for (const [asker, line] of this.#lines) {
      if (this.#running.size >= atOnce_max) return;
      if (this.#running.has(asker)) continue;
      const { question, resolve, reject } = line.shift()!;
      // Behind the others.
      this.#lines.delete(asker);
      if (line.length > 0) this.#lines.set(asker, line);
      const running = this.#answer(question)
        .then(resolve, reject)
        .finally(() => {
          this.#running.delete(asker);
          this.#next();
        });
      this.#running.set(asker, running);
    }
  }

  async #answer(question: UsageQuestion): Promise<Uint8Array> {
    await this.#options.settled();
    const summed = this.#options.isReadBeside ? undefined : await this.#sum(question);
    this.#closing.signal.throwIfAborted();
    this.#thread ??= this.#startThread();
    const thread = this.#thread;
    return await new Promise((resolve, reject) => {
      const id = ++this.#last_id;
      this.#asked.set(id, { resolve, reject });
      const buffers = summed ? [summed.groups.buffer, summed.hours.buffer, summed.values.buffer] : [];
      thread.postMessage({ id, question, summed } satisfies AskedQuestion, buffers as ArrayBuffer[]);
    });
  }

  async #sum(question: UsageQuestion): Promise<SummedGroups> {
    const { db, ledger } = this.#options;
    try {
      return await inSlices(sumSteps(db, queryOf(question)), this.#closing.signal);
    } catch (error) {
      throw ledgerError(error, ledger);
    }
  }

  #startThread(): Worker {
    const workerData: QuestionThreadData = { ledger: this.#options.ledger };
    // Threads need compiled JavaScript, wherever this file itself runs from.
    const thread = new Worker(threadFile, { workerData });
    thread.unref();
    thread.on('message', (told: FromQuestionThread) => {
      const asked = this.#asked.get(told.id);
      this.#asked.delete(told.id);
      if ('answer' in told) asked?.resolve(told.answer);
      else asked?.reject(HpcserveError.fromJSON(told.failure));
    });
    thread.once('error', (error) => this.#ended(thread, error));
    thread.once('exit', () => this.#ended(thread, new Error('the thread that answers questions ended')));
    return thread;
  }

  /** Another is started with a later question. */
  #ended(thread: Worker, reason: Error): void {
    if (this.#thread !== thread) return;
    this.#thread = undefined;
    const { signal } = this.#closing;
    const error = signal.aborted ? (signal.reason as HpcserveError) : HpcserveError.from(reason);
    for (const { reject } of this.#asked.values()) reject(error);
    this.#asked.clear();
  }
}

function tooMany(own: number, all: number): HpcserveError {
  return new HpcserveError('E_KEY_QUESTIONS', {
    what: `${own} questions about usage of this key wait, of ${all} in all, and one key may have ${line_max}, all of them ${waiting_max}`,
    details: { retry_after_s: retryAfter_s },
  });
}
