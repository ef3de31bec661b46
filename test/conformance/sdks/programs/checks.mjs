// What the programs of this folder have in common: whom they ask, and how they tell what came of each check.
import assert from 'node:assert/strict';
import { inspect } from 'node:util';

/** As of `openai` and most others. */
export const server = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
/** Without `/v1`. */
export const host = process.env.OPENAI_BASE_URL.replace(/\/v1$/, '');
/** Which of several ways of a client a program takes. */
export const way = process.argv[2];

export const chat_model = process.env.HPCSERVE_TEST_CHAT_MODEL;
export const tools_model = process.env.HPCSERVE_TEST_TOOLS_MODEL;
/** `native`, or the wrapped engine behind the gateway. */
export const engine = process.env.HPCSERVE_TEST_ENGINE;

export const story = 'Tell me a story.';
export const story_tokens = 12;
/** Asks for this much in order to break off. */
export const long_tokens = 900;
/** Tokens within which an answer that is bound to a small schema ends; the model at the wrapped engine has bytes. */
export const bound_tokens = engine === 'native' ? 120 : 400;
export const places = ['here', 'there'];
export const digits = ['1', '2'];
/** One pixel. */
export const image =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

/** What is thrown. */
export async function thrownBy(ask) {
  const nothing = Symbol('nothing');
  const thrown = await Promise.resolve()
    .then(ask)
    .then(
      () => nothing,
      (error) => error,
    );
  assert.notEqual(thrown, nothing, 'it was to be refused');
  return thrown;
}

/** A refusal that names images: no model of the tests sees. */
export async function refusesImages(ask, statusOf = (error) => error.status) {
  const error = await thrownBy(ask);
  assert.equal(statusOf(error), 400, inspect(error));
  assert.match(inspect(error), /image|multimodal/i);
}

const left_out = JSON.parse(process.env.HPCSERVE_TEST_LEFT_OUT);

/** One JSON line a check. */
export async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    if (left_out.includes(name)) continue;
    let failed = null;
    try {
      await check();
    } catch (error) {
      failed = inspect(error, { depth: 4 }).slice(0, 4000);
    }
    process.stdout.write(`${JSON.stringify({ name, failed })}\n`);
  }
  // Some clients keep connections or timers of their own.
  process.exit(0);
}
