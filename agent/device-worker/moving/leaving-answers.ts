import type { LeavingAnswer } from '../../../solver/evacuation/evacuation.ts';
import type { SequenceState } from '../compute/kv-messages.ts';
import type { Submission } from '../compute/messages.ts';
import type { Models } from '../models.ts';
import type { MovableModels } from './movable-models.ts';

/** An answer with all of its sequences that are alive. */
export interface AliveAnswer extends LeavingAnswer {
  alive: Submission[];
}

/** What is alive of a model, by answer: the choices of one move together, since they are one stream. */
export async function aliveAnswers(
  models: Models,
  movable: MovableModels,
  name: string,
  refusals: ReadonlyMap<number, readonly string[]>,
): Promise<AliveAnswer[]> {
  const states = (await movable.ask({ do: 'list', model: name })) as SequenceState[];
  const byId = new Map(states.map((state) => [state.id, state]));
  const token_bytes = movable.tokenSize_bytes(name);
  const answers = new Map<number, AliveAnswer>();
  for (const submission of models.liveSequences(name)) {
    const { answer: id, continuable } = submission;
    const nothing = { generated_tokens: 0, computed_tokens: 0, kv_tokens: 0, kv_bytes: 0, sequences: 0 };
    const refused_by = refusals.get(id) ?? [];
    const answer = answers.get(id) ?? { id, model: name, ...nothing, continuable, refused_by, alive: [] };
    const state = byId.get(submission.id);
    const { tokens, computed_tokens } = state ?? { tokens: submission.tokens.length, computed_tokens: 0 };
    answer.generated_tokens += Math.max(0, tokens - submission.n_prompt);
    answer.computed_tokens += computed_tokens;
    answer.kv_tokens += tokens;
    answer.kv_bytes += computed_tokens * token_bytes;
    answer.sequences++;
    answer.alive.push(submission);
    answers.set(id, answer);
  }
  return [...answers.values()];
}
