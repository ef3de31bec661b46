/** What node agents write of themselves, as control reads it. */
import { z } from 'zod';
import type { AgentState } from '../../spec/agent-state.ts';
import { readStateFile } from './state-file.ts';

/** What must be there to be read at all; agents of other versions may say more of themselves, and of their models. */
const agentStateSchema = z.looseObject({
  format: z.literal(1),
  node: z.string(),
  node_index: z.int(),
  phase: z.enum(['starting', 'loading', 'serving', 'draining', 'stopped', 'failed']),
  started_at_ms: z.number(),
  updated_at_ms: z.number(),
  devices: z.array(z.looseObject({ kind: z.string(), model: z.string() })),
  sessions: z.array(
    z.looseObject({
      engine: z.string(),
      models: z.array(z.looseObject({ name: z.string(), state: z.string() })),
    }),
  ),
});

/** @returns undefined where it has said nothing yet. @throws E_STATE_FOLDER where the file is damaged */
export function readAgentState(path: string): AgentState | undefined {
  return readStateFile(path, agentStateSchema) as AgentState | undefined;
}
