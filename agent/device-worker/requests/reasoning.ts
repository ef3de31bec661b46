import { reasoningClose } from '../../text/output/reasoning.ts';
import type { ReasoningLimit } from '../../text/sampling/reasoning-budget.ts';
import type { ModelText } from '../served-model.ts';
import type { BodyReader, JsonObject } from './body-reader.ts';

const efforts = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'] as const;
type Effort = (typeof efforts)[number];

/** Which share of an answer's tokens an effort allows to reason with, as OpenRouter documents it for its API. */
const shares: Readonly<Record<Effort, number>> = {
  none: 0,
  minimal: 0.1,
  low: 0.2,
  medium: 0.5,
  high: 0.8,
  xhigh: 0.95,
};

/** How much a model is to reason, as a request says it. */
export interface ReasoningRequest {
  effort?: Effort;
  max_tokens?: number;
}

/** OpenAI's `reasoning_effort`, OpenRouter's `reasoning: {effort | max_tokens}`, vLLM's `thinking_token_budget`. */
export function readReasoning(body: BodyReader): ReasoningRequest {
  const asked = body.object('reasoning');
  const found = {
    reasoning_effort: body.oneOf('reasoning_effort', efforts),
    'reasoning.effort': asked?.oneOf('effort', efforts),
    'reasoning.max_tokens': asked?.number('max_tokens', { min: 0, integer: true }),
    thinking_token_budget: body.number('thinking_token_budget', { min: 0, integer: true }),
  };
  asked?.unsupported('exclude', 'leave `reasoning_content` unread');
  asked?.finish();
  const [first, second] = Object.entries(found).filter(([, value]) => value !== undefined);
  if (second) body.refuse(second[0], `cannot be combined with \`${first![0]}\``);
  const value = first?.[1];
  if (value === undefined) return {};
  return typeof value === 'number' ? { max_tokens: value } : { effort: value };
}

/** Names under which chat templates look for it; one that knows none of them leaves all to the budget. */
export function reasoningVariables({ effort, max_tokens }: ReasoningRequest): JsonObject {
  return {
    ...(effort === undefined ? {} : { reasoning_effort: effort }),
    ...(effort === 'none' ? { enable_thinking: false, thinking: false } : {}),
    ...(max_tokens === undefined ? {} : { thinking_budget: max_tokens }),
  };
}

/** @param answer_tokens most that the answer may have, reasoning included */
export function reasoningLimit(
  { effort, max_tokens }: ReasoningRequest,
  answer_tokens: number,
  opened: boolean,
  { vocabulary }: ModelText,
): ReasoningLimit | undefined {
  const most = effort === undefined ? max_tokens : Math.floor(shares[effort] * answer_tokens);
  if (most === undefined) return undefined;
  const close = vocabulary.tokenize(`\n${reasoningClose}\n\n`, { add_special: false, parse_special: true });
  return { max_tokens: most, opened, close_tokens: [...close] };
}
