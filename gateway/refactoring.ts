import { HpcserveError } from '../spec/errors/error.ts';
import {
  type RefactorOutcome,
  type RefactorRequest,
  refactor_ms_max,
  refactorOutcomeSchema,
  refactorRequestSchema,
} from '../spec/refactor.ts';
import { agentPaths } from '../spec/wire.ts';
import type { GatewayLog } from './log.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

/** What the operator posts: to which session, and what the pipeline is to become. */
export const refactorOrderSchema = refactorRequestSchema.extend({
  session_id: refactorRequestSchema.shape.model,
});

/**
 * Has a pipeline of the native engine become another one: the coordinator's agent is told, and its outcome passed on.
 * @throws HpcserveError E_REFACTOR_REFUSED
 */
export async function refactorPipeline(
  table: RoutingTable<SessionLink>,
  log: GatewayLog,
  session_id: string,
  request: RefactorRequest,
): Promise<RefactorOutcome> {
  const { model, stages } = request;
  const refused = (because: string): HpcserveError =>
    new HpcserveError('E_REFACTOR_REFUSED', {
      what: `${model} was not given ${stages.length} stages`,
      because,
      details: { session_id, model },
    });
  const session = table.sessions().find(({ record }) => record.session_id === session_id);
  const link = session?.replicas.find(({ served }) => served.name === model)?.session;
  if (!session || !link)
    throw refused(`this gateway knows no session ${session_id.slice(0, 8)} that serves it`);
  if (!session.reachable) throw refused('its coordinator cannot be reached');
  log.info({ session: session_id, model, stages }, 'a pipeline is to become another one');
  let told: unknown;
  try {
    told = await link.tell(agentPaths.refactor, model, request, refactor_ms_max);
  } catch (error) {
    throw refused((error as Error).message);
  }
  const outcome = refactorOutcomeSchema.parse(told);
  log.info(
    { session: session_id, model, stages: stages.length, ...outcome },
    'a pipeline became another one',
  );
  return outcome;
}
