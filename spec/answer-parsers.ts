/**
 * What reads tool calls and reasoning out of the text of a wrapped engine's answers: the engine's own parsers, which
 * are chosen by name when it is started.
 */
import { z } from 'zod';

const name = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, 'auto, none, or the name of a parser of the engine')
  .default('auto');

/** Of model.yaml. */
export const askedParsersSchema = z.strictObject({
  tools: name.describe(
    'What reads tool calls: auto (by chat template and architecture), none, or a name that the engine knows. An option in engine_args wins.',
  ),
  reasoning: name.describe(
    'The same for reasoning, which clients then get apart from the answer; auto also takes `reasoning: false` as none.',
  ),
});

/** One way of writing, and what the engines call its parser: several names where versions differ, best first. */
export const answerFormatSchema = z.strictObject({
  /** For people. */
  format: z.string(),
  vllm: z.array(z.string()).readonly(),
  sglang: z.array(z.string()).readonly(),
  /** A chat template of vLLM's examples that its documentation recommends beside the parser. */
  vllm_template: z.string().optional(),
});
export type AnswerFormat = z.infer<typeof answerFormatSchema>;

export const answerFormatsSchema = z.strictObject({
  tools: answerFormatSchema.optional(),
  reasoning: answerFormatSchema.optional(),
});
export type AnswerFormats = z.infer<typeof answerFormatsSchema>;

/** Of a launch: names to try, of which the first that the installed version has is passed; empty: none. */
export const unitParsersSchema = z.strictObject({
  tools: z.array(z.string()),
  reasoning: z.array(z.string()),
});
export type UnitParsers = z.infer<typeof unitParsersSchema>;
