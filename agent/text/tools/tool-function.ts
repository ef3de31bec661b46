import type { JsonValue } from '../grammar/schema-keywords.ts';

/** A tool that a model may call. */
export interface ToolFunction {
  name: string;
  /** JSON schema of the arguments. */
  parameters: JsonValue;
  /** What of the schema cannot be promised is refused; else it is a warning. */
  strict: boolean;
  /** Path of the parameters in the request, for messages. */
  path: readonly string[];
}
