import { useMemo } from 'preact/hooks';
import type { DeploymentRow, JobRow } from '../../../spec/deployment-row.ts';
import type { DeviceRow } from '../api/rows.ts';
import { duration, moment, nothing, percent, plural, size } from '../format.ts';
import { Badge, Empty, Loading, Meter, PageHead, Trouble, useNow } from '../parts/basics.tsx';
import { toneOf } from '../parts/states.ts';
import { isWaiting } from '../state/model-views.ts';
import { type DeviceView, type NodeView, nodeViews } from '../state/node-views.ts';
import { usePoll } from '../state/poll.ts';
import { devices, jobs, meshTable } from '../state/questions.ts';
import { signIn } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';

export function Jobs() {
  const table = usePoll(meshTable);
  const deployed = usePoll(jobs);
  const operator = useStore(signIn)?.role === 'operator';
  const nodes = useMemo(() => (table.data ? nodeViews(table.data) : []), [table.data]);
  const all = (deployed.data?.deployments ?? []).flatMap((deployment) => deployment.jobs);
  const waiting = all.filter(isWaiting).length;
  const running = all.filter(({ phase, state }) => phase === 'submitted' && state === 'RUNNING').length;
  return (
    <>
      <PageHead
        title="Jobs and nodes"
        note={
          table.data &&
          `${plural(nodes.length, 'node')}${deployed.data ? `, ${plural(running, 'job')} running, ${waiting} waiting` : ''}`
        }
      />
      <section aria-labelledby="nodes-title">
        <h2 id="nodes-title">Devices</h2>
        {!table.data && !table.error && <Loading rows={3} what="Asking for the nodes" />}
        {!table.data && table.error && <Trouble error={table.error} what="The nodes cannot be shown." />}
        {table.data && nodes.length === 0 && (
          <Empty title="No node serves now.">
            <p>Nodes stand here from the moment on at which a job of a deployment starts on them.</p>
          </Empty>
        )}
        {operator ? <MapWithMemory nodes={nodes} /> : <DeviceMap nodes={nodes} />}
      </section>
      <section aria-labelledby="jobs-title">
        <h2 id="jobs-title">Jobs</h2>
        {!deployed.data && !deployed.error && <Loading rows={3} what="Asking for the jobs" />}
        {!deployed.data && deployed.error && (
          <Trouble error={deployed.error} what="The jobs of deployments are not available here." />
        )}
        {deployed.data && all.length === 0 && <Empty title="There are no jobs." />}
        {all.length > 0 && <JobTable deployments={deployed.data!.deployments} />}
      </section>
    </>
  );
}

function MapWithMemory({ nodes }: { nodes: readonly NodeView[] }) {
  const { data } = usePoll(devices);
  return <DeviceMap nodes={nodes} reports={data?.devices} />;
}

function DeviceMap({
  nodes,
  reports,
}: {
  nodes: readonly NodeView[];
  reports?: readonly DeviceRow[] | undefined;
}) {
  const now_ms = useNow();
  return (
    <ul class="nodes">
      {nodes.map((node) => (
        <li class="node" key={`${node.site}/${node.name}`}>
          <div class="node-head">
            <h3>{node.name}</h3>
            <span class="quiet">{node.site}</span>
            {node.tier === 'scavenger' && <Badge tone="warn">scavenger</Badge>}
          </div>
          <div class="devices">
            {node.devices.map((device, at) => (
              <DeviceCell
                key={at}
                device={device}
                report={reports?.find(({ session_id }) => device.session_id === session_id)}
              />
            ))}
          </div>
          <p class="node-foot">{nodeFoot(node, now_ms)}</p>
          {node.started_at_ms !== undefined && node.end_ms !== undefined && (
            <span class="walltime" aria-hidden="true">
              <span style={{ width: `${100 * leftShare(node.started_at_ms, node.end_ms, now_ms)}%` }} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

function nodeFoot({ jobs: ids, end_ms, provider }: NodeView, now_ms: number): string {
  const job = ids.length > 0 ? `job ${ids.join(', ')}` : provider;
  if (end_ms === undefined) return `${job} · no time limit`;
  return end_ms > now_ms ? `${job} · ${duration(end_ms - now_ms)} left` : `${job} · at its time limit`;
}

function leftShare(start_ms: number, end_ms: number, now_ms: number): number {
  return Math.max(0, Math.min(1, (end_ms - now_ms) / Math.max(1, end_ms - start_ms)));
}

function DeviceCell({ device, report }: { device: DeviceView; report: DeviceRow | undefined }) {
  const weights = report?.report?.instances.reduce((sum, { weight_bytes }) => sum + weight_bytes, 0);
  const kv = report?.report?.instances.reduce((sum, { kv_bytes }) => sum + kv_bytes, 0);
  const words = device.models.map(({ name, state }) => (state === 'serving' ? name : `${name} (${state})`));
  return (
    <div class={`device ${toneOf(device.state)}`}>
      <span class="device-head">
        <b>{device.model}</b>
        {device.emulated && <span class="quiet"> emulated</span>}
      </span>
      <span class="device-models">{words.join(', ') || device.state}</span>
      <span class="quiet">
        {size(device.memory_bytes)}
        {weights !== undefined && kv !== undefined && `: ${size(weights)} weights, ${size(kv)} KV`}
      </span>
      {device.places > 0 && (
        <Meter
          share={device.running / device.places}
          label={`${device.running} of ${device.places}`}
          tone="good"
        />
      )}
      {device.kv_share !== undefined && (
        <span class="visually-hidden">KV cache {percent(device.kv_share)} used</span>
      )}
    </div>
  );
}

function JobTable({ deployments }: { deployments: readonly DeploymentRow[] }) {
  const now_ms = useNow();
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Jobs">
      <table class="jobs">
        <thead>
          <tr>
            <th>Deployment</th>
            <th>Job</th>
            <th>State</th>
            <th>Where</th>
            <th>Submitted</th>
            <th>Starts</th>
            <th>Time left</th>
            <th>What is said of it</th>
          </tr>
        </thead>
        <tbody>
          {deployments.flatMap(({ name, jobs: list }) =>
            list.map((job, at) => (
              <JobLine key={`${name}/${at}`} deployment={name} job={job} now_ms={now_ms} />
            )),
          )}
        </tbody>
      </table>
    </div>
  );
}

function JobLine({ deployment, job, now_ms }: { deployment: string; job: JobRow; now_ms: number }) {
  const { job_id, phase, state = phase, where, nodes, submitted_at_ms } = job;
  const ended = phase === 'ended';
  const { start_time_ms, end_time_limit_ms: end_ms } = job;
  return (
    <tr class={ended ? 'past' : undefined}>
      <td>{deployment}</td>
      <td>{job_id ?? nothing}</td>
      <td>
        <Badge tone={toneOf(state)}>{state.toLowerCase()}</Badge>
        {job.superseded && !ended && <span class="quiet"> is replaced</span>}
      </td>
      <td>{[where, nodes].filter(Boolean).join(': ') || nothing}</td>
      <td>{submitted_at_ms === undefined ? nothing : moment(submitted_at_ms, now_ms)}</td>
      <td>{startOf(job, now_ms)}</td>
      <td>
        {!ended && start_time_ms !== undefined && end_ms !== undefined ? (
          <Meter
            share={leftShare(start_time_ms, end_ms, now_ms)}
            label={duration(Math.max(0, end_ms - now_ms))}
          />
        ) : (
          nothing
        )}
      </td>
      <td class="wrap">{job.end_reason ?? job.waits_for ?? ''}</td>
    </tr>
  );
}

function startOf({ start_time_ms, estimated_start_ms, phase }: JobRow, now_ms: number): string {
  if (start_time_ms !== undefined) return moment(start_time_ms, now_ms);
  if (phase === 'ended' || estimated_start_ms === undefined) return nothing;
  return `about ${moment(estimated_start_ms, now_ms)}`;
}
