import { checkGrammarWidth } from '../../text/grammar/grammar-width.ts';
import {
  choiceGrammar,
  jsonObjectGrammar,
  jsonSchemaGrammar,
  patternGrammar,
} from '../../text/grammar/json-grammar.ts';
import { type BodyReader, grammar_chars_max, type Json } from './body-reader.ts';

/** What an answer must follow, and the parameter that says so. */
interface Bound {
  param: string;
  gbnf: string;
}

export type PossibleBound = { param: string; gbnf: string | undefined } | undefined;

/** Texts to choose from, and characters of each. Lower: smaller requests; higher: longer lists of labels. */
const choices_max = 5000;

/** Names within vLLM's `structured_outputs`, and those that it had before. */
const kinds = { json: readJson, regex: readRegex, choice: readChoice, grammar: readGrammar } as const;

/** vLLM's `structured_outputs`, and `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`. */
export function readStructuredOutputs(body: BodyReader): Bound | undefined {
  const found: Bound[] = [];
  const outputs = body.object('structured_outputs');
  // Which library of vLLM's compiles it changes nothing about what it says.
  body.ignore('guided_decoding_backend');
  outputs?.ignore('disable_fallback');
  for (const [kind, read] of Object.entries(kinds))
    for (const [reader, name] of [
      [outputs, kind],
      [body, `guided_${kind}`],
    ] as const) {
      const value = reader?.raw(name);
      if (reader && value !== undefined)
        found.push({ param: reader.path(name), gbnf: read(reader, name, value) });
    }
  if (outputs?.boolean('json_object'))
    found.push({ param: outputs.path('json_object'), gbnf: jsonObjectGrammar() });
  outputs?.unsupported('structural_tag', 'use `tools`');
  outputs?.finish();
  const [first, second] = found;
  if (second) body.refuse(second.param, `cannot be combined with \`${first!.param}\``);
  return first;
}

/** A schema, or its text. */
function readJson(reader: BodyReader, name: string, value: Json): string {
  let schema = value;
  if (typeof value === 'string')
    try {
      const parsed: unknown = JSON.parse(value);
      schema = parsed as Json;
    } catch {
      return reader.refuse(name, 'must be a JSON schema, or the text of one');
    }
  return jsonSchemaGrammar(schema, [reader.path(name)]);
}

function readRegex(reader: BodyReader, name: string, value: Json): string {
  return typeof value === 'string' ? patternGrammar(value) : reader.refuse(name, 'must be a string');
}

function readChoice(reader: BodyReader, name: string, value: Json): string {
  const texts = Array.isArray(value) ? value.filter((one) => typeof one === 'string' && one !== '') : [];
  if (!Array.isArray(value) || texts.length === 0 || texts.length !== value.length)
    return reader.refuse(name, 'must be a list of texts that are not empty');
  if (texts.length > choices_max) reader.refuse(name, `may hold at most ${choices_max} texts`);
  return choiceGrammar(texts as string[]);
}

function readGrammar(reader: BodyReader, name: string, value: Json): string {
  if (typeof value !== 'string') return reader.refuse(name, 'must be a grammar in GBNF');
  if (value.length > grammar_chars_max)
    reader.refuse(name, `may have at most ${grammar_chars_max} characters, not ${value.length}`);
  return value;
}

/** Of all that may bind an answer, the one that does. @throws E_REQUEST_INVALID where two do */
export function onlyGrammar(
  body: BodyReader,
  { ignore_eos }: { ignore_eos: boolean },
  all: readonly PossibleBound[],
): string | undefined {
  const [first, second] = all.filter((one): one is Bound => one?.gbnf !== undefined);
  if (!first) return undefined;
  const { param, gbnf } = first;
  if (second) body.refuse(second.param, `cannot be combined with \`${param}\``);
  if (ignore_eos) body.refuse('ignore_eos', `cannot be combined with \`${param}\``);
  checkGrammarWidth(gbnf, param);
  return gbnf;
}
