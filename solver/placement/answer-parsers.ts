/** Which parsers of a wrapped engine a model's answers are read with, and how that is said in a plan. */
import type { AnswerFormat, UnitParsers } from '../../spec/answer-parsers.ts';
import type { PlacementModel, ResolvedEngine } from '../../spec/plan.ts';

type EngineWithParsers = 'vllm' | 'sglang';

const hasParsers = (engine: ResolvedEngine): engine is EngineWithParsers =>
  engine === 'vllm' || engine === 'sglang';

/** Names to try; undefined for engines that have no such parsers, or none that is chosen when they start. */
export function parsersFor(model: PlacementModel, engine: ResolvedEngine): UnitParsers | undefined {
  if (!hasParsers(engine)) return undefined;
  return {
    tools: [...namesOf(model.spec.parsers.tools, model.formats?.tools, engine)],
    reasoning: [...namesOf(askedReasoning(model), model.formats?.reasoning, engine)],
  };
}

function askedReasoning({ spec }: PlacementModel): string {
  return spec.parsers.reasoning === 'auto' && spec.reasoning === false ? 'none' : spec.parsers.reasoning;
}

function namesOf(
  asked: string,
  format: AnswerFormat | undefined,
  engine: EngineWithParsers,
): readonly string[] {
  if (asked === 'none') return [];
  return asked === 'auto' ? (format?.[engine] ?? []) : [asked];
}

/** Sentences for the plan; none for models that do not chat. */
export function describeParsers(model: PlacementModel, engine: ResolvedEngine): string[] {
  const parsers = parsersFor(model, engine);
  if (parsers === undefined || !hasParsers(engine)) return [];
  const { spec, formats } = model;
  const chats = spec.chat_template !== undefined || model.summary?.has_chat_template === true;
  const chosen = [
    describeOne('tool calls', parsers.tools, spec.parsers.tools, formats?.tools),
    describeOne('reasoning', parsers.reasoning, spec.parsers.reasoning, formats?.reasoning),
  ].filter((words) => words !== undefined);
  const sentences: string[] = [];
  if (chosen.length > 0)
    sentences.push(`${engine} reads ${chosen.join(', ')}; where its version has the parser`);
  if (parsers.tools.length === 0 && spec.parsers.tools === 'auto' && chats)
    sentences.push(
      `no parser of ${engine} is known for this model's tool calls: it refuses tool_choice auto (parsers.tools names one)`,
    );
  const template = formats?.tools?.vllm_template;
  if (engine === 'vllm' && template && spec.chat_template === undefined && parsers.tools.length > 0)
    sentences.push(`vLLM recommends its example ${template} for tool calls of this model (chat_template)`);
  return sentences;
}

function describeOne(
  what: string,
  names: readonly string[],
  asked: string,
  format: AnswerFormat | undefined,
): string | undefined {
  if (names.length === 0) return undefined;
  return asked === 'auto'
    ? `${what} of ${format!.format} by ${names.join(' or ')}`
    : `${what} by ${names[0]} (as model.yaml says)`;
}
