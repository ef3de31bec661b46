/** `status`: what a deployment is now, found by one poll and by reading state files; changes nothing. */
import { type Assessment, assess } from './assess.ts';
import type { DeploymentState } from './deployment-state.ts';
import { jobLog } from './diagnose.ts';
import { baseUrl } from './gateway.ts';
import { lookAtGateway } from './gateway-process.ts';
import type { JobSnapshot } from './job-runner.ts';
import { describeDevices, observe, pollJobsIfReachable, type UnitSight } from './observe.ts';
import type { Operations } from './operations.ts';

export interface GatewayReport {
  state: 'running' | 'elsewhere' | 'silent' | 'not_running';
  url?: string;
  hostname?: string;
  because?: string;
}

export interface LaunchReport {
  launch_id: string;
  job_id?: string;
  node_kind: string;
  where?: string;
  /** Of an earlier version of the deployment, on its way out. */
  superseded: boolean;
  phase: string;
  job?: JobSnapshot;
  nodes: { node: string; phase: string; devices: string[] }[];
  units: UnitSight[];
  log_file: string;
}

export interface DeploymentReport extends Assessment {
  name: string;
  site: string;
  owner: string;
  generation: number;
  spec_file: string;
  created_at_ms: number;
  updated_at_ms: number;
  models: { name: string; engine: string; replicas_wanted: number; replicas_serving: number }[];
  launches: LaunchReport[];
}

export async function reportDeployment(
  operations: Operations,
  state: DeploymentState,
): Promise<DeploymentReport> {
  const { store, runner, now_ms } = operations;
  const now = now_ms();
  const observation = observe(state, store, await pollJobsIfReachable(state, store, runner, now), now);
  const launches = state.launches
    .filter((launch) => !launch.superseded || launch.phase !== 'ended')
    .map((launch): LaunchReport => {
      const sight = observation.launches.get(launch.launch_id);
      const job = launch.phase === 'ended' ? launch.last : sight?.job;
      return {
        launch_id: launch.launch_id,
        node_kind: launch.planned.node_kind,
        superseded: launch.superseded,
        phase: launch.phase,
        nodes: (sight?.agents ?? []).map((agent) => ({
          node: agent.node,
          phase: agent.phase,
          devices: describeDevices(agent.devices),
        })),
        units: sight?.units ?? [],
        log_file: jobLog(state, store, launch.launch_id),
        ...(launch.job_id === undefined ? {} : { job_id: launch.job_id }),
        ...(launch.where === undefined ? {} : { where: launch.where }),
        ...(job ? { job } : {}),
      };
    });
  const units = launches.filter((launch) => !launch.superseded).flatMap((launch) => launch.units);
  return {
    name: state.name,
    site: state.site,
    owner: state.owner,
    generation: state.generation,
    spec_file: state.spec_file,
    created_at_ms: state.created_at_ms,
    updated_at_ms: state.updated_at_ms,
    ...assess(state, observation),
    models: state.models.map((model) => {
      const own = units.filter((unit) => unit.model === model.model);
      return {
        name: model.model,
        engine: model.engine,
        replicas_wanted: model.replicas,
        replicas_serving: own.filter((unit) => unit.state === 'serving').length,
      };
    }),
    launches,
  };
}

export async function reportGateway(operations: Operations): Promise<GatewayReport> {
  const sight = await lookAtGateway(operations.store.layout);
  if (sight.state === 'not_running') return { state: sight.state, because: sight.because };
  return {
    state: sight.state,
    url: baseUrl(sight.endpoint),
    hostname: sight.endpoint.hostname,
    ...('because' in sight ? { because: sight.because } : {}),
  };
}
