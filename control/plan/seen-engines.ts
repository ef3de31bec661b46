import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { EngineLimits } from '../../spec/agent-state.ts';
import { concurrencyOf } from '../../spec/launch.ts';
import type { EngineSeen } from '../../spec/plan.ts';
import { readAgentState } from '../state/agent-state-file.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';

/** What the engines of a deployment's replicas said of their limits, by model; from the files of its agents. */
export function seenEngines(state: DeploymentState, store: DeploymentStore): Map<string, EngineSeen[]> {
  const seen = new Map<string, EngineSeen[]>();
  for (const { launch_id, planned } of wantedLaunches(state)) {
    const wrapped = planned.units.filter(({ engine }) => engine !== 'native');
    if (wrapped.length === 0) continue;
    const told = limitsIn(store.launchFolder(state.name, launch_id));
    for (const unit of wrapped) {
      const limits = told.get(unit.unit);
      if (limits === undefined) continue;
      const { engine, tensor, pipeline, model } = unit;
      const each: EngineSeen = { node_kind: planned.node_kind, engine, tensor, pipeline };
      each.max_sequences = limits.max_sequences ?? concurrencyOf(unit);
      if (limits.kv_tokens !== undefined) each.kv_tokens = limits.kv_tokens;
      seen.set(model.name, [...(seen.get(model.name) ?? []), each]);
    }
  }
  return seen;
}

/** By unit; of a job that ran on several nodes one after the other, what was said last. */
function limitsIn(folder: string): Map<string, EngineLimits> {
  const limits = new Map<string, EngineLimits>();
  if (!existsSync(folder)) return limits;
  const states = readdirSync(folder)
    .filter((name) => name.endsWith('.state.json') && !name.startsWith('.'))
    .flatMap((name) => readAgentState(join(folder, name)) ?? [])
    .sort((a, b) => a.updated_at_ms - b.updated_at_ms);
  for (const { sessions } of states)
    for (const { unit, limits: said } of sessions)
      if (unit !== undefined && said !== undefined) limits.set(unit, said);
  return limits;
}
