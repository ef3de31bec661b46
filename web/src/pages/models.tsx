import { useMemo, useState } from 'preact/hooks';
import type { MeshTable, ReplicaRow, SessionRow } from '../api/rows.ts';
import { count, duration, moment, nothing, number, percent, plural } from '../format.ts';
import { Badge, Empty, Loading, Meter, PageHead, Trouble, useNow } from '../parts/basics.tsx';
import { Icon } from '../parts/icon.tsx';
import { hardware, stateOf, toneOf } from '../parts/states.ts';
import { type ModelView, modelViews } from '../state/model-views.ts';
import { usePoll } from '../state/poll.ts';
import { jobs, meshTable } from '../state/questions.ts';
import { linkTo } from '../state/route.ts';

export function Models() {
  const table = usePoll(meshTable);
  const deployed = usePoll(jobs);
  const [filter, setFilter] = useState('');
  const views = useMemo(
    () => (table.data ? modelViews(table.data, deployed.data?.deployments ?? []) : []),
    [table.data, deployed.data],
  );
  const words = filter.trim().toLowerCase();
  const shown = views.filter((view) => view.search.includes(words));
  const serving = views.filter(({ serving_replicas }) => serving_replicas > 0).length;
  return (
    <>
      <PageHead
        title="Models"
        note={table.data && `${serving} of ${plural(views.length, 'model')} serve now`}
      >
        <input
          type="search"
          class="filter"
          placeholder="Model, node, device …"
          aria-label="Filter models"
          data-slash
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
      </PageHead>
      {!table.data && !table.error && <Loading rows={5} what="Asking for the models" />}
      {!table.data && table.error && <Trouble error={table.error} what="The models cannot be shown." />}
      {table.data && views.length === 0 && (
        <Empty title="No model is deployed that this key may use.">
          <p>
            <code>hpcserve deploy model.yaml</code> brings one; it stands here as soon as its job is
            submitted.
          </p>
        </Empty>
      )}
      {views.length > 0 && shown.length === 0 && <Empty title={`Nothing is called “${filter}”.`} />}
      <div class="model-list">
        {shown.map((view) => (
          <ModelCard key={view.name} view={view} table={table.data!} />
        ))}
      </div>
    </>
  );
}

function ModelCard({ view, table }: { view: ModelView; table: MeshTable }) {
  const [open, setOpen] = useState(false);
  const { name, replicas, state } = view;
  return (
    <section class="model" aria-label={name}>
      <div class="model-head">
        <h2>{name}</h2>
        <Badge tone={toneOf(state)}>{state}</Badge>
        {view.aliases.length > 0 && <span class="aliases">also {view.aliases.join(', ')}</span>}
        <div class="model-actions">
          {replicas.length > 0 && (
            <button type="button" class="button plain" aria-expanded={open} onClick={() => setOpen(!open)}>
              <Icon name={open ? 'shut' : 'open'} />
              {plural(replicas.length, 'replica')}
            </button>
          )}
          {(view.serving_replicas > 0 || state === 'asleep') && (
            <a class="button plain chat-link" href={linkTo('chat', { model: name })}>
              Chat
            </a>
          )}
        </div>
      </div>
      {replicas.length > 0 && <Facts view={view} table={table} />}
      <Queue view={view} />
      {open && <Replicas replicas={replicas} />}
    </section>
  );
}

function Facts({ view, table }: { view: ModelView; table: MeshTable }) {
  const rate = table.workload.find(({ model }) => model === view.name);
  return (
    <dl class="facts">
      <Fact name="Hardware">{view.hardware || nothing}</Fact>
      <Fact name="Replicas">
        {count(view.serving_replicas)}
        {view.replicas.length > view.serving_replicas && (
          <span class="of"> of {count(view.replicas.length)}</span>
        )}
      </Fact>
      <Fact name="Engine">{view.engines.join(', ') || nothing}</Fact>
      <Fact name="Precision">{view.precisions.join(', ') || nothing}</Fact>
      <Fact name="Context">{view.context_tokens ? count(view.context_tokens) : nothing}</Fact>
      <Fact name="Requests">{rate ? `${number(rate.rate_per_s * 60)}/min` : nothing}</Fact>
      <Fact name="Sequences">
        {view.places > 0 ? (
          <Meter
            share={view.running / view.places}
            tone={view.waiting > 0 ? 'warn' : 'good'}
            label={`${view.running} of ${view.places}${view.waiting > 0 ? `, ${view.waiting} wait` : ''}`}
          />
        ) : (
          nothing
        )}
      </Fact>
      <Fact name="KV cache">
        {view.kv_share === undefined ? (
          nothing
        ) : (
          <Meter share={view.kv_share} label={percent(view.kv_share)} />
        )}
      </Fact>
      <Fact name="Prompts found in caches">
        {foundShare(view.replicas.map(({ replica }) => replica)) ?? nothing}
      </Fact>
    </dl>
  );
}

/** Of all prompt tokens that replicas looked for in their caches; undefined where none says, or none was asked. */
function foundShare(replicas: readonly ReplicaRow[]): string | undefined {
  let [queried_tokens, found_tokens] = [0, 0];
  for (const { prefix_cache } of replicas) {
    queried_tokens += prefix_cache?.queried_tokens ?? 0;
    found_tokens += prefix_cache?.found_tokens ?? 0;
  }
  return queried_tokens > 0 ? percent(found_tokens / queried_tokens) : undefined;
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** What is to come: jobs that wait, and models that sleep. */
function Queue({ view }: { view: ModelView }) {
  const now_ms = useNow();
  if (view.asleep_since_ms === undefined && view.pending.length === 0) return null;
  return (
    <ul class="queue">
      {view.asleep_since_ms !== undefined && (
        <li>
          Asleep since {moment(view.asleep_since_ms, now_ms)}: nobody asked. The next request starts it
          {view.wake_s ? `, which took ${duration(1000 * view.wake_s)} the last time` : ''}.
        </li>
      )}
      {view.pending.map((job) => (
        <li key={job.job_id ?? job.submitted_at_ms}>
          {job.job_id ? `Job ${job.job_id}` : 'A job'} waits
          {job.submitted_at_ms ? ` for ${duration(now_ms - job.submitted_at_ms)}` : ''}
          {job.waits_for ? `: ${job.waits_for}` : ''}.{' '}
          {job.estimated_start_ms
            ? `Slurm expects it to start ${
                job.estimated_start_ms > now_ms ? `in ${duration(job.estimated_start_ms - now_ms)}, ` : ''
              }at ${moment(job.estimated_start_ms, now_ms)}.`
            : 'Slurm gives no estimate yet.'}
        </li>
      ))}
    </ul>
  );
}

function ReplicaState({ session, replica }: { session: SessionRow; replica: ReplicaRow }) {
  const state = stateOf(session, replica.state);
  return (
    <>
      <Badge tone={toneOf(state)} title={replica.error}>
        {state}
      </Badge>
      {replica.pool && <span class="quiet"> {replica.pool}</span>}
      {replica.off_device && (
        <span class="quiet" title="Its next request brings it back to its device">
          {' '}
          in host memory
        </span>
      )}
    </>
  );
}

function Replicas({ replicas }: { replicas: readonly { session: SessionRow; replica: ReplicaRow }[] }) {
  const now_ms = useNow();
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Replicas">
      <table>
        <thead>
          <tr>
            <th>Node</th>
            <th>State</th>
            <th>Hardware</th>
            <th>Engine</th>
            <th>Job</th>
            <th class="number">Left</th>
            <th class="number">Running</th>
            <th class="number">Waiting</th>
            <th class="number">KV</th>
            <th class="number" title="Prompt tokens that its cache had, since its engine started">
              Found
            </th>
          </tr>
        </thead>
        <tbody>
          {replicas.map(({ session, replica }) => {
            return (
              <tr key={session.session_id}>
                <td>
                  {session.node}
                  <span class="quiet"> {session.site}</span>
                </td>
                <td>
                  <ReplicaState session={session} replica={replica} />
                </td>
                <td>{hardware(session.devices) || nothing}</td>
                <td>{session.engine ?? nothing}</td>
                <td>
                  {session.job_id ?? nothing}
                  {session.tier === 'scavenger' && <span class="quiet"> scavenger</span>}
                </td>
                <td class="number">
                  {session.job_end_time_ms
                    ? duration(Math.max(0, session.job_end_time_ms - now_ms))
                    : nothing}
                </td>
                <td class="number">
                  {replica.running}/{replica.max_sequences}
                </td>
                <td class="number">{replica.waiting}</td>
                <td class="number">
                  {replica.kv_tokens_total > 0
                    ? percent(replica.kv_tokens_used / replica.kv_tokens_total)
                    : nothing}
                </td>
                <td class="number">{foundShare([replica]) ?? nothing}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
