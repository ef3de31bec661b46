import type { AgentPhase, AgentState, SessionState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';
import type { DeviceAssignment } from './assign-devices.ts';
import { oneLine } from './model-path.ts';
import type { NodeIdentity } from './slurm-environment.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';

export interface AgentFacts {
  launch: LaunchSpec;
  identity: NodeIdentity;
  phase: AgentPhase;
  started_at_ms: number;
  devices: DeviceDescription[];
  /** Of the agent's own session; undefined until it has joined the mesh. */
  session_id: string | undefined;
  /** What each unit's supervisor says of it. */
  units: readonly SessionState[];
  /** Units for which the node has no devices. */
  failed: DeviceAssignment['failed'];
  error: HpcserveError | undefined;
  exit_reason: string | undefined;
  notices: readonly HpcserveError[];
  walltime_warning_at_ms: number | undefined;
}

/** What an agent says of itself in its state file, and to gateways that ask. */
export function describeAgent(facts: AgentFacts): AgentState {
  const { launch, identity, notices } = facts;
  const { job_id, restart_count } = identity;
  const state: AgentState = {
    format: 1,
    launch_id: launch.launch_id,
    deployment: launch.deployment,
    node: identity.node,
    hostname: identity.hostname,
    node_index: identity.node_index,
    pid: process.pid,
    phase: facts.phase,
    started_at_ms: facts.started_at_ms,
    updated_at_ms: Date.now(),
    devices: facts.devices,
    sessions: [
      ...(facts.session_id === undefined ? [] : [ownSession(facts.session_id)]),
      ...facts.units,
      ...facts.failed.map(failedUnit),
    ],
  };
  if (job_id !== undefined) state.job_id = job_id;
  if (restart_count !== undefined) state.restart_count = restart_count;
  if (facts.error !== undefined) state.error = facts.error.toJSON();
  if (facts.exit_reason !== undefined) state.exit_reason = facts.exit_reason;
  if (notices.length > 0) state.notices = notices.map((notice) => notice.toJSON());
  if (facts.walltime_warning_at_ms !== undefined) state.walltime_warning_at_ms = facts.walltime_warning_at_ms;
  return state;
}

function ownSession(session_id: string): SessionState {
  return { session_id, role: 'node-agent', engine: 'none', pid: process.pid, models: [] };
}

function failedUnit({ unit, error }: DeviceAssignment['failed'][number]): SessionState {
  return {
    session_id: '',
    role: unit.engine === 'native' ? 'device-worker' : 'engine',
    unit: unit.unit,
    engine: unit.engine,
    models: [
      {
        name: unit.model.name,
        aliases: unit.model.aliases,
        state: 'failed',
        precision: unit.model.precision,
        context_tokens: unit.context_tokens,
        error: oneLine(error.message),
      },
    ],
    error: error.toJSON(),
  };
}

/**
 * Why an agent ends that has nothing to serve.
 * @param missing units for which the node has no devices
 */
export function unitsFailed(
  node: string,
  { launch_folder }: LaunchSpec,
  missing: DeviceAssignment['failed'],
  supervisors: readonly UnitSupervisor[],
): HpcserveError {
  const reasons = [
    ...missing.map(({ unit, error }) => `${unit.unit}: ${error.toText()}`),
    ...supervisors.flatMap((supervisor) => {
      // The first stage of a unit that lost another one has nothing to say.
      if (supervisor.failed_units.length === 0 && !supervisor.given_up) return [];
      const [failed] = supervisor.model_errors.values();
      return [`${supervisor.name}: ${(supervisor.error ?? failed)?.toText() ?? 'it failed'}`];
    }),
  ];
  return new HpcserveError('E_AGENT_UNITS_FAILED', {
    what: `nothing can be served on ${node}: every unit failed`,
    because: reasons,
    details: { launch_folder },
  });
}
