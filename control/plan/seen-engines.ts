import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { SessionState } from '../../spec/agent-state.ts';
import type { StageTime } from '../../spec/engine-contract.ts';
import { concurrencyOf, type UnitSpec } from '../../spec/launch.ts';
import type { EngineSeen, PlannedLaunch, StageSeen } from '../../spec/plan.ts';
import { readAgentState } from '../state/agent-state-file.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { isOfGroup } from '../state/pipeline-groups.ts';

/** So do rates of links. */
const link_digits = 2;
/** What processes take differs a little from start to start: plans do not change with that. */
const programs_step_bytes = 2 ** 28;

/** What a deployment's replicas said of their limits and of their stages, by model; from the files of its agents. */
export function seenEngines(state: DeploymentState, store: DeploymentStore): Map<string, EngineSeen[]> {
  const seen = new Map<string, EngineSeen[]>();
  const wanted = wantedLaunches(state);
  for (const { launch_id, planned } of wanted) {
    const saying = planned.units.filter(
      ({ engine, stages, memory }) =>
        engine !== 'native' || stages !== undefined || memory?.arena_bytes !== undefined,
    );
    if (saying.length === 0) continue;
    const told = toldIn(store.launchFolder(state.name, launch_id));
    for (const unit of saying) {
      const said = told.get(unit.unit);
      const { engine, tensor, pipeline, model } = unit;
      const each: EngineSeen = { node_kind: planned.node_kind, engine, tensor, pipeline };
      const lender = lenderOf(planned, wanted);
      if (lender !== undefined) each.lender = lender;
      const stages = said?.stage_times?.[model.name];
      if (stages !== undefined) {
        each.stages = stages.map(stageSeen);
        seen.set(model.name, [...(seen.get(model.name) ?? []), each]);
      }
      const rate = said?.streamed?.[model.name]?.link_bytes_per_s;
      if (rate !== undefined) {
        each.link_bytes_per_s = Number(rate.toPrecision(link_digits));
        seen.set(model.name, [...(seen.get(model.name) ?? []), each]);
      }
      if (said?.limits === undefined) continue;
      each.max_sequences = said.limits.max_sequences ?? concurrencyOf(unit);
      if (said.limits.kv_tokens !== undefined) each.kv_tokens = said.limits.kv_tokens;
      const programs_bytes = programsOf(unit, said.host_bytes);
      if (programs_bytes !== undefined) each.programs_bytes = programs_bytes;
      seen.set(model.name, [...(seen.get(model.name) ?? []), each]);
    }
  }
  return seen;
}

/** Kind of the nodes of the other jobs of its pipeline, where that is another. */
function lenderOf({ part, node_kind }: PlannedLaunch, wanted: readonly LaunchRecord[]): string | undefined {
  if (part === undefined) return undefined;
  const others = wanted.filter((launch) => isOfGroup(launch, part.group)).map(({ planned }) => planned);
  return others.find((other) => other.node_kind !== node_kind)?.node_kind;
}

/** Operators are measured in fewer batches than stages: what counts of them is their shares. */
function stageSeen({ begin, end, computed_us, operators_us = [] }: StageTime): StageSeen {
  const seen: StageSeen = { begin, end, compute_s: computed_us / 1e6 };
  const sum_us = operators_us.reduce((sum, us) => sum + us, 0);
  if (sum_us > 0) seen.operators_s = operators_us.map((us) => (seen.compute_s * us) / sum_us);
  return seen;
}

/** By unit; of a job that ran on several nodes one after the other, what was said last. */
function toldIn(folder: string): Map<string, SessionState> {
  const told = new Map<string, SessionState>();
  if (!existsSync(folder)) return told;
  const states = readdirSync(folder)
    .filter((name) => name.endsWith('.state.json') && !name.startsWith('.'))
    .flatMap((name) => readAgentState(join(folder, name)) ?? [])
    .sort((a, b) => a.updated_at_ms - b.updated_at_ms);
  for (const { sessions } of states)
    for (const session of sessions)
      for (const unit of session.units ?? [session.unit])
        if (unit !== undefined && hasMeasured(session)) told.set(unit, session);
  return told;
}

/** One that has only just begun takes nothing away of what was known. */
function hasMeasured({ limits, stage_times, streamed = {} }: SessionState): boolean {
  const rates = Object.values(streamed).filter(({ link_bytes_per_s }) => link_bytes_per_s !== undefined);
  return (limits ?? stage_times) !== undefined || rates.length > 0;
}

/**
 * What the processes of a replica on CPUs took beside weights and KV, for each of its devices: vLLM and SGLang write
 * all of their KV when they make it. Undefined where that is not known: on GPUs, on several nodes, and where its
 * processes are not seen (in some containers they are no children of what was started).
 */
function programsOf(
  { device_kind, device_count, nodes = 1, weight_bytes, memory }: UnitSpec,
  host_bytes: number | undefined,
): number | undefined {
  if (device_kind !== 'cpu' || nodes > 1 || memory === undefined || host_bytes === undefined)
    return undefined;
  const bytes = host_bytes - weight_bytes - memory.kv_bytes * device_count;
  return bytes > 0 ? Math.ceil(bytes / device_count / programs_step_bytes) * programs_step_bytes : undefined;
}
