/**
 * Honest clients of the soak: they stream with OpenAI's client, know what they should be answered, and note how long it
 * took.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';

export interface Question {
  prompt: string;
  seed: number;
  expected: string;
}

export interface HonestRecord {
  /** Of every answer that was whole, in the order of their ends. */
  request_ids: string[];
  ttft_ms: number[];
  duration_ms: number[];
  gap_ms: number[];
  /** Answers that differ from an undisturbed run. */
  wrong: number;
  failed: string[];
}

export interface HonestClient {
  url: string;
  key: string;
  model: string;
  questions: readonly Question[];
  index: number;
}

const questions_count = 24;
const max_tokens = 40;
/** Between two questions of a client. */
const pause_ms = 300;

export const honestRecord = (): HonestRecord => ({
  request_ids: [],
  ttft_ms: [],
  duration_ms: [],
  gap_ms: [],
  wrong: 0,
  failed: [],
});

let requests = 0;

/** What each prompt is answered while nothing goes wrong. */
export async function knownAnswers(url: string, key: string, model: string): Promise<Question[]> {
  const questions: Question[] = [];
  for (let seed = 0; seed < questions_count; seed++) {
    const question = { prompt: `Tell me story number ${seed} about a ship.`, seed, expected: '' };
    questions.push({ ...question, expected: await stream({ url, key, model }, question, honestRecord()) });
  }
  return questions;
}

export async function askUntil(end_ms: number, client: HonestClient, record: HonestRecord): Promise<void> {
  for (let turn = client.index; performance.now() < end_ms; turn++) {
    const question = client.questions[turn % client.questions.length]!;
    try {
      if ((await stream(client, question, record)) !== question.expected) record.wrong++;
    } catch (error) {
      record.failed.push(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
    }
    await sleep(pause_ms);
  }
}

async function stream(
  { url, key, model }: Pick<HonestClient, 'url' | 'key' | 'model'>,
  { prompt, seed }: Question,
  record: HonestRecord,
): Promise<string> {
  const id = `soak-${process.pid}-${requests++}`;
  const openai = new OpenAI({
    baseURL: url,
    apiKey: key,
    maxRetries: 0,
    timeout: 120_000,
    defaultHeaders: { 'x-request-id': id },
  });
  const asked_ms = performance.now();
  let last_ms = asked_ms;
  let text = '';
  let finish: string | null = null;
  const chunks = await openai.chat.completions.create({
    model,
    messages: [{ role: 'user', content: prompt }],
    max_tokens,
    temperature: 0.8,
    seed,
    stream: true,
    ...{ ignore_eos: true },
  });
  for await (const { choices } of chunks) {
    const [choice] = choices;
    if (choice === undefined) continue;
    if (choice.delta.content) {
      const now_ms = performance.now();
      if (text === '') record.ttft_ms.push(now_ms - asked_ms);
      else record.gap_ms.push(now_ms - last_ms);
      last_ms = now_ms;
      text += choice.delta.content;
    }
    finish = choice.finish_reason ?? finish;
  }
  if (finish === null) throw new Error('the stream ended without a finish reason');
  record.duration_ms.push(performance.now() - asked_ms);
  record.request_ids.push(id);
  return text;
}
