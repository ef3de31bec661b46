/** Pipelines of a deployment on a site of emulated GPUs: planned by the real planner, seen as agents would say it. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { planNow } from '../../../control/plan/plan-now.ts';
import type { LaunchObservation, Observation } from '../../../control/reconcile/observe.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { ArrivalWindows } from '../../../solver/granularity/arrival-windows.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import type { StageTime } from '../../../spec/engine-contract.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, launchRecord, ScriptedRunner, temporaryStore } from '../support.ts';

const machine = {
  name: 'machine',
  count: 2,
  cpus: 8,
  memory_gb: 16,
  devices: [{ kind: 'gpu', model: 'A100', count: 4, memory_gb: 2, cores: 1, emulated: 'cpu' }],
};

/** One site, with what a keeper of it would see. */
export class PipelinePlace {
  readonly place = temporaryStore();
  events: ProgressEvent[] = [];
  readonly operations: Operations;
  now_ms = 1e9;
  readonly source: string;

  /** @param kinds of nodes beside the one that has two nodes of four A100 */
  constructor(models: string, kinds: readonly object[] = []) {
    const { store } = this.place;
    const site = siteSchema.parse({ name: 'local', kind: 'local', node_kinds: [machine, ...kinds] });
    this.source = join(models, 'small.gguf');
    this.operations = {
      ...openOperations({
        facts: { user: 'someone', environment: {} },
        command: 'test',
        now_ms: () => this.now_ms,
        emit: () => undefined,
        signal: new AbortController().signal,
        loaded: { site, path: '/site.yaml', layout: store.layout, provenance: () => undefined },
      }),
      store,
      runner: new ScriptedRunner(),
    };
  }

  dispose(): void {
    this.place.dispose();
  }

  /** With the fewest stages, as it is where nobody merges them, or was merged already. */
  deployed(pipeline?: unknown, jobs?: number, more: object = {}): Promise<DeploymentState> {
    const { loaded } = this.operations;
    const { site } = loaded;
    const unkept = { ...loaded, site: { ...site, keeper: { ...site.keeper, place: 'none' as const } } };
    return this.started({ ...this.operations, loaded: unkept }, pipeline, jobs, more);
  }

  async started(
    by: Operations,
    pipeline: unknown = { stages_min: 2, stages_max: 4 },
    jobs?: number,
    more: object = {},
  ): Promise<DeploymentState> {
    const model = {
      name: 'cut',
      source: this.source,
      engine: 'native',
      context_tokens: 256,
      max_sequences: 4,
      devices: { kind: 'gpu' },
      workload: { rate_per_s: 1, input_tokens: 200, output_tokens: 4 },
      parallel: { pipeline, jobs },
      ...more,
    };
    const spec = deploymentSchema.parse({ name: 'demo', models: [model] });
    const { plan } = await planNow(by, spec, '/model.yaml');
    const launches = plan.launches.map((planned, index) =>
      launchRecord(index + 1, { phase: 'submitted', job_id: '1', planned }),
    );
    const state = deploymentState(launches, { spec, kept: true, models: plan.models });
    this.place.store.prepareDeployment('demo');
    this.place.store.write(state);
    return state;
  }

  /** As agents and jobs say: every stage as it was planned, or where its coordinator says what it takes. */
  seen(state: DeploymentState, stage_times?: readonly StageTime[]): Observation {
    const [{ launch_id, planned }] = state.launches as [DeploymentState['launches'][number]];
    const [unit] = planned.units;
    const device = { kind: 'gpu' as const, model: 'A100', memory_bytes: 2e9, isa: [] };
    const session = {
      session_id: 'ab'.repeat(16),
      role: 'device-worker',
      unit: unit!.unit,
      units: [unit!.unit],
      engine: 'native',
      devices: [{ index: 0, ...device }],
      models: [],
      stage_times: stage_times && { cut: stage_times },
    };
    const agent = {
      node: 'n0',
      node_index: 0,
      phase: 'serving',
      devices: [device, device, device, device],
      sessions: [session],
    } as unknown as AgentState;
    const stages = (stage_times ?? unit!.stages ?? []).map(({ begin, end }, stage) => ({
      ...{ begin, end },
      stage,
      node: 'n0',
      device: `gpu ${stage}`,
      runs: true,
    }));
    const status = { unit: unit!.unit, model: 'cut', engine: 'native', state: 'serving' as const, stages };
    return {
      at_ms: this.now_ms,
      problems: [],
      launches: new Map([
        [
          launch_id,
          { launch_id, superseded: false, agents: [agent], units: [status], serving_units: [unit!.unit] },
        ],
      ]) as Observation['launches'],
    };
  }

  /** The same where each of its stages is a job, on these nodes, with two devices. */
  inJobs(state: DeploymentState, nodes: readonly string[]): Observation {
    const alone = this.seen(state);
    const [[first_id, first]] = [...alone.launches] as [[string, LaunchObservation]];
    const [status] = first.units;
    const stages = status!.stages!.map((stage, at) => ({ ...stage, node: nodes[at]!, device: 'gpu 0' }));
    const launches = state.launches.map(({ launch_id }, at): [string, LaunchObservation] => {
      const [agent] = first.agents;
      const isFirst = launch_id === first_id;
      const sessions = isFirst ? agent!.sessions : [];
      const own = { ...agent!, node: nodes[at]!, devices: agent!.devices.slice(0, 2), sessions };
      return [
        launch_id,
        { ...first, launch_id, agents: [own], units: isFirst ? [{ ...status!, stages }] : [] },
      ];
    });
    return { ...alone, launches: new Map(launches) };
  }

  /**
   * As a gateway writes it that was asked so often for 20 s.
   * @param pass_ms of its answers, all of them
   * @param asked_ms when the last request came
   */
  asked(
    rate_per_s: number,
    in_flight: number,
    pass_ms: readonly number[] = [],
    asked_ms = this.now_ms,
  ): void {
    const windows = new ArrivalWindows();
    for (let at_ms = asked_ms - 20_000; at_ms < asked_ms; at_ms += 1000 / rate_per_s) windows.observe(at_ms);
    const folder = this.place.store.layout.gateway_folder;
    mkdirSync(folder, { recursive: true });
    const demand = {
      ...{ model: 'cut', request_s: 1, in_flight, asked_ms, arrivals: windows.read(this.now_ms) },
      answers: { total: pass_ms.length, last: pass_ms.map((ms, index) => [this.now_ms + index, ms]) },
    };
    const file = { format: 1, started_ms: 0, measured_ms: this.now_ms, models: [demand] };
    writeFileSync(join(folder, 'demand.json'), JSON.stringify(file));
  }
}

/** A folder with the model's file. */
export async function pipelineModels(): Promise<{ folder: string; dispose: () => void }> {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-pipelines-'));
  const shape = synthPresets['small-llama']!;
  await synthesize({ path: join(folder, 'small.gguf'), shape, quantization: 'Q8_0', seed: 1 });
  return { folder, dispose: () => rmSync(folder, { recursive: true, force: true }) };
}
