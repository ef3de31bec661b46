/** Clients that stream all the time, each on one gateway until that one goes away, and judge every answer they get. */
import OpenAI from 'openai';

/** A gateway as clients know it; it may be away for a while. */
export interface Door {
  url: string;
  /** Counts up each time it is killed: a request that saw it change is one that its own gateway took along. */
  killed: number;
}

/** A prompt and what an undisturbed run answers to it. */
export interface Question {
  prompt: string;
  seed: number;
  expected: string;
}

export interface ClientRecord {
  /** Answers that were whole. */
  answered: number;
  /** Of them, those whose text was not that of an undisturbed run. */
  wrong: { question: Question; got: string }[];
  /** Requests whose own gateway was killed while they ran: asked again at the other one. */
  lost_with_gateway: number;
  /** Requests that failed through a gateway that lived. */
  failed: string[];
  /** When each token came, ms since the start. */
  tokens_at_ms: number[];
  /** Seconds from request to first token of every answer. */
  ttft_s: number[];
}

export const emptyRecord = (): ClientRecord => ({
  answered: 0,
  wrong: [],
  lost_with_gateway: 0,
  failed: [],
  tokens_at_ms: [],
  ttft_s: [],
});

export interface ClientOptions {
  key: string;
  model: string;
  max_tokens: number;
  questions: readonly Question[];
  doors: readonly Door[];
  started_ms: number;
  /** Ends the loop between two requests. */
  over: () => boolean;
}

/** One client: asks one question after the other until it is over. */
export async function client(index: number, options: ClientOptions, record: ClientRecord): Promise<void> {
  const { doors, questions } = options;
  for (let turn = index; !options.over(); turn++) {
    const question = questions[turn % questions.length]!;
    const door = doors[index % doors.length]!;
    await answer(question, door, doors, options, record);
  }
}

async function answer(
  question: Question,
  own: Door,
  doors: readonly Door[],
  options: ClientOptions,
  record: ClientRecord,
): Promise<void> {
  const others = doors.filter((door) => door !== own);
  // A client that loses its gateway asks the next, as it would with two base URLs.
  for (const door of [own, ...others, own]) {
    const before = door.killed;
    const asked_ms = performance.now();
    try {
      const text = await stream(question, door, options, record, asked_ms);
      record.answered++;
      if (text !== question.expected) record.wrong.push({ question, got: text });
      return;
    } catch (error) {
      if (door.killed === before && door.killed % 2 === 0) {
        record.failed.push(`${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`);
        return;
      }
      record.lost_with_gateway++;
    }
  }
}

/** The text of one streamed answer. @throws where the stream is not whole. */
export async function stream(
  { prompt, seed }: Pick<Question, 'prompt' | 'seed'>,
  door: Door,
  options: Pick<ClientOptions, 'key' | 'model' | 'max_tokens' | 'started_ms'>,
  record: ClientRecord,
  asked_ms: number,
): Promise<string> {
  const openai = new OpenAI({ baseURL: door.url, apiKey: options.key, maxRetries: 0, timeout: 120_000 });
  const chunks = await openai.chat.completions.create({
    model: options.model,
    messages: [{ role: 'user', content: prompt }],
    max_tokens: options.max_tokens,
    temperature: 0.8,
    seed,
    stream: true,
    // The toy models would otherwise end when they like: all answers have the same length.
    ...{ ignore_eos: true },
  });
  let text = '';
  let finish: string | null = null;
  for await (const { choices } of chunks) {
    const [choice] = choices;
    if (choice === undefined) continue;
    if (choice.delta.content) {
      const now_ms = performance.now();
      if (text === '') record.ttft_s.push((now_ms - asked_ms) / 1000);
      record.tokens_at_ms.push(now_ms - options.started_ms);
      text += choice.delta.content;
    }
    finish = choice.finish_reason ?? finish;
  }
  if (finish === null) throw new Error('the stream ended without a finish reason');
  return text;
}
