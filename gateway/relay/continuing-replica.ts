import { z } from 'zod';
import { agentPaths } from '../../spec/wire.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import { type ContinuingReplica, SpellError } from './journal/journal.ts';

/** A replica spells some thousand tokens in milliseconds; while it reads long prompts it may be late. */
const spell_ms = 5000;

/** vLLM calls it `prompt`, SGLang `text`. */
const spelled = z.union([z.object({ prompt: z.string() }), z.object({ text: z.string() })]);

/** What a journal may ask of a replica that is to go on with its stream. */
export function continuingReplica({ session, served }: Replica<SessionLink>): ContinuingReplica {
  return {
    engine: session.facts.engine ?? '',
    precision: served.precision,
    context_tokens: served.context_tokens,
    detokenize: async (tokens) => {
      if (tokens.length === 0) return '';
      let told: unknown;
      try {
        told = await session.tell(
          agentPaths.detokenize,
          served.name,
          { model: served.name, tokens },
          spell_ms,
        );
      } catch (error) {
        throw new SpellError((error as Error).message);
      }
      const { data } = spelled.safeParse(told);
      if (!data) throw new SpellError('it answered with something else than a text');
      return 'prompt' in data ? data.prompt : data.text;
    },
  };
}
