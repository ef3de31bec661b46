/** Checks of Slurm, the gateway, the deployments and their models. */
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import {
  GatewayAdmin,
  type MeshReport,
  type MeshSession,
  meshSessions,
} from '../../control/gateway/admin.ts';
import { inspectGateways, readAdminToken } from '../../control/gateway/process.ts';
import { warningsOf } from '../../control/gateway/warnings.ts';
import { liveFacts } from '../../control/plan/live-facts.ts';
import { offersOf } from '../../control/plan/site-offers.ts';
import type { Operations } from '../../control/runner/operations.ts';
import { sentenceOf } from '../../control/state/findings.ts';
import { type DeploymentReport, reportDeployments, reportGateway } from '../../control/status.ts';
import { isSupported } from '../../slurm/client.ts';
import { FirecrestClient } from '../../slurm/firecrest/client.ts';
import { checkPermissions, type Permissions } from '../../slurm/permissions.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteConfig } from '../../spec/site.ts';
import type { NodeKind } from '../../spec/site-nodes.ts';
import type { SlurmDefaults } from '../../spec/site-slurm.ts';
import type { Directive } from '../../spec/slurm-types.ts';
import { formatDuration } from '../format/quantities.ts';
import { type CheckResult, failed, passed, skipped, warning } from './check.ts';

export async function checkSlurm(operations: Operations): Promise<CheckResult[]> {
  const { slurm, loaded } = operations;
  if (!slurm) return [skipped('slurm', `the site ${loaded.site.name} has none`)];
  try {
    const version = await slurm.version();
    const results: CheckResult[] = [
      isSupported(version)
        ? passed('slurm', `${version.text}, reachable`)
        : warning('slurm', `${version.text} is older than 20.11`, 'expect gaps; report what goes wrong'),
    ];
    const config = await slurm.config();
    results.push(...judgeController(config.told_at_ms, operations.now_ms()));
    results.push(
      config.has_accounting
        ? passed('accounting', 'sacct tells how jobs ended')
        : warning(
            'accounting',
            `off: ended jobs are forgotten after ${config.min_job_age_s} s`,
            'run status within that time',
          ),
    );
    const clusters = await slurm.clusters();
    if (clusters && clusters.length > 1)
      results.push(
        passed(
          'clusters',
          clusters
            .map(
              ({ name, controller, federation }) =>
                `${name}${federation ? ` of federation ${federation}` : ''}${controller === undefined && loaded.site.slurm?.firecrest === undefined ? ' (not up)' : ''}`,
            )
            .join(', '),
        ),
      );
    results.push(...judgePermissions(await slurm.permissions(), namedIn(loaded.site)));
    if (slurm instanceof FirecrestClient) results.push(await checkSharedState(operations, slurm));
    const offers = offersOf(loaded.site, await liveFacts(operations), operations.facts.environment);
    for (const offer of offers)
      results.push(
        offer.nodes_total > 0
          ? passed(
              `node kind ${offer.node_kind}`,
              `${offer.nodes_total} node(s), ${offer.nodes_idle ?? '?'} idle`,
            )
          : warning(
              `node kind ${offer.node_kind}`,
              `Slurm lists no usable node in ${offer.partitions.join(', ') || 'any partition'}`,
              `compare its partition, features and gres_type in ${loaded.path} with: sinfo -N -o '%N %P %f %G %t'`,
            ),
      );
    return results;
  } catch (error) {
    return [failedBy('slurm', error, 'check with: sinfo')];
  }
}

/** The times of jobs are Slurm's, and what is due is decided by this host's clock. */
function judgeController(told_at_ms: number | undefined, now_ms: number): CheckResult[] {
  // Whole seconds, and some time on the way.
  if (told_at_ms === undefined || Math.abs(told_at_ms - now_ms) <= clockDoubt_ms) return [];
  return [
    warning(
      'clock of Slurm',
      `Slurm's controller is ${describeClockLead(told_at_ms - now_ms)} this host: jobs are renewed so much too ${told_at_ms > now_ms ? 'late' : 'early'}`,
      'set this host right; check with: timedatectl',
    ),
  ];
}

/** Clocks of nodes that differ from the gateway's, as it hears them. */
function judgeClocks(sessions: readonly MeshSession[]): CheckResult[] {
  const ofNodes = new Map(sessions.map(({ node, clock_ahead_ms = 0 }) => [node, clock_ahead_ms]));
  return [...ofNodes].flatMap(([node, ahead_ms]) =>
    Math.abs(ahead_ms) <= clockDoubt_ms
      ? []
      : [
          warning(
            `clock of ${node}`,
            `${describeClockLead(ahead_ms)} the gateway's host; requests and jobs go on, times in the logs of that node are wrong by as much`,
            `tell the operator of ${node}; check there with: timedatectl`,
          ),
        ],
  );
}

/** Clocks that differ by less differ in nothing that people see. */
const clockDoubt_ms = 5000;

function describeClockLead(ahead_ms: number): string {
  return `${formatDuration(Math.abs(ahead_ms))} ${ahead_ms > 0 ? 'ahead of' : 'behind'}`;
}

/**
 * Jobs and this machine must see the same state folder: what is written there over FirecREST is read here, and back.
 */
async function checkSharedState(
  { loaded, store }: Operations,
  firecrest: FirecrestClient,
): Promise<CheckResult> {
  store.prepareSite();
  const path = join(loaded.layout.root, `.doctor-${randomBytes(6).toString('hex')}`);
  const probe = randomBytes(32).toString('hex');
  let only_there = false;
  let judged: CheckResult;
  try {
    await firecrest.upload(path, Buffer.from(probe));
    only_there = !existsSync(path);
    const here = only_there ? undefined : readFileSync(path, 'utf8');
    const there = Buffer.from(await firecrest.download(path)).toString();
    judged =
      here === probe && there === probe
        ? passed('state folder', `${loaded.layout.root} is the same here and there`)
        : failed(
            'state folder',
            here === undefined
              ? `what FirecREST writes to ${loaded.layout.root} is not seen here`
              : `${path} has another content ${here === probe ? 'there' : 'here'}`,
            'set state_dir to a folder of a filesystem that this machine shares with the cluster',
          );
  } catch (error) {
    judged = failedBy('state folder', error, 'set state_dir to a folder that the cluster has too');
  }
  const left = only_there ? await leftThere(firecrest, path) : '';
  rmSync(path, { force: true });
  return { ...judged, found: `${judged.found}${left}` };
}

/** Takes a file back that this machine does not see; what to say where that fails. */
async function leftThere(firecrest: FirecrestClient, path: string): Promise<string> {
  try {
    await firecrest.remove(path);
    return '';
  } catch (error) {
    return `; ${path} stays on the cluster: ${HpcserveError.from(error).because.join(': ')}`;
  }
}

/** Accounts, QoS and reservations that the site config names, by where. */
function namedIn(site: SiteConfig): Directive[] {
  const places: [string, Partial<SlurmDefaults> | undefined][] = [
    ['slurm.defaults', site.slurm?.defaults],
    ...site.node_kinds.map((kind): [string, NodeKind['slurm']] => [`node kind ${kind.name}`, kind.slurm]),
  ];
  return places.flatMap(([place, settings]) =>
    (['account', 'qos', 'reservation'] as const).flatMap((name) => {
      const value = settings?.[name];
      return value === undefined ? [] : [{ name, value, source: `${place}.${name}` }];
    }),
  );
}

function judgePermissions(permissions: Permissions, named: readonly Directive[]): CheckResult[] {
  const { associations, reservations = [] } = permissions;
  const results: CheckResult[] = [];
  if (associations?.length)
    results.push(
      passed(
        'accounts',
        associations
          .map(
            ({ account, partition, qos, is_default }) =>
              `${account}${is_default ? ' (default)' : ''}${partition ? ` on ${partition}` : ''}: QoS ${qos.join(', ') || 'any'}`,
          )
          .join('; '),
      ),
    );
  if (reservations.length > 0)
    results.push(
      passed(
        'reservations',
        reservations.map(({ name, nodes }) => `${name}: ${nodes.length} node(s)`).join('; '),
      ),
    );
  for (const directive of named) {
    try {
      checkPermissions([directive], permissions);
    } catch (error) {
      results.push(failedBy(`${directive.name} ${directive.value}`, error, 'hpcserve config'));
    }
  }
  return results;
}

export async function checkGateway(operations: Operations): Promise<CheckResult> {
  const { state, url, because } = await reportGateway(operations);
  const wanted = operations.store.list().some((name) => operations.store.load(name)?.desired === 'serving');
  if (state === 'running') return passed('gateway', `answers at ${url}`);
  if (state === 'elsewhere') return warning('gateway', because ?? '', 'run this where the gateway runs');
  if (state === 'silent')
    return failed('gateway', because ?? '', 'hpcserve stop --gateway, then deploy again');
  return wanted
    ? failed('gateway', `${because}, and deployments want it`, 'hpcserve deploy FILE')
    : passed('gateway', 'not running, and nothing is deployed');
}

/** What clients send, and to whom it may have gone. */
export async function checkWayToGateways({ loaded }: Operations): Promise<CheckResult[]> {
  const results: CheckResult[] = [];
  for (const { number, layout, status } of await inspectGateways(loaded.layout)) {
    if (status.state !== 'running') continue;
    const check = number === 1 ? 'gateway' : `gateway ${number}`;
    try {
      for (const { about, found, mend } of await warningsOf(loaded.site, layout, status.endpoint))
        results.push(warning(`${check}: ${about}`, found, mend));
    } catch (error) {
      results.push(failedBy(check, error, 'hpcserve status'));
    }
  }
  return results;
}

/** What the mesh refused, as its gateways count it. */
export async function checkMesh({ loaded }: Operations): Promise<CheckResult[]> {
  const results: CheckResult[] = [];
  for (const { number, layout, status } of await inspectGateways(loaded.layout)) {
    if (status.state !== 'running') continue;
    const check = number === 1 ? 'mesh' : `mesh of gateway ${number}`;
    try {
      const token = readAdminToken(layout);
      const admin = new GatewayAdmin(status.endpoint, token);
      results.push(...judgeMesh(check, await admin.mesh(), loaded.site.mesh.gossip));
      if (number > 1) continue;
      const sessions = await meshSessions(status.endpoint, token, {});
      results.push(...judgeClocks(sessions), ...describeEngines(sessions));
    } catch (error) {
      results.push(failedBy(check, error, 'hpcserve status'));
    }
  }
  return results;
}

/** Wrapped engines that run, as their agents found them. */
function describeEngines(sessions: readonly MeshSession[]): CheckResult[] {
  const nodes = new Map<string, Set<string>>();
  for (const { engine, engine_version, node } of sessions) {
    if (engine === undefined || engine === 'native' || engine_version === undefined) continue;
    const words = `${engine} ${engine_version}`;
    nodes.set(words, (nodes.get(words) ?? new Set()).add(node));
  }
  const found = [...nodes].map(([words, where]) => `${words} on ${[...where].join(', ')}`);
  return found.length === 0 ? [] : [passed('engines that run', found.join('; '))];
}

function judgeMesh(check: string, { gossip, folder_rejected }: MeshReport, wanted: boolean): CheckResult[] {
  const rejected = [
    ...Object.entries(gossip?.rejected ?? {}).map(([reason, count]) => [`gossip: ${reason}`, count] as const),
    ...Object.entries(folder_rejected).map(([reason, count]) => [`folder: ${reason}`, count] as const),
  ].filter(([, count]) => count > 0);
  const members = gossip
    ? `${gossip.members} members of the gossip, ${gossip.connected} connected`
    : 'no gossip: the folder does the work';
  const results: CheckResult[] = [];
  if (wanted && !gossip)
    results.push(warning(check, members, 'the log of the gateway says why: hpcserve logs --gateway'));
  else if (gossip && gossip.members > 1 && gossip.connected === 0)
    results.push(
      warning(
        check,
        members,
        'let nodes connect to each other by TCP, or set mesh.gossip: false in the site config',
      ),
    );
  else results.push(passed(check, members));
  if (rejected.length > 0)
    results.push(
      warning(
        `${check}: refused`,
        rejected.map(([reason, count]) => `${reason} ${count}`).join(', '),
        'what each means: docs/mesh.md, “Who does not belong”',
      ),
    );
  return results;
}

export async function checkDeployments(operations: Operations): Promise<CheckResult[]> {
  const { store } = operations;
  const results: CheckResult[] = [];
  for (const name of store.list()) {
    try {
      const state = store.require(name);
      if (state.desired === 'stopped') continue;
      const [report] = (await reportDeployments(operations, [state])) as [DeploymentReport];
      const check = `deployment ${name}`;
      const found = [
        `${report.phase}, ${report.replicas_serving} of ${report.replicas_wanted} replicas`,
        ...report.reasons,
      ];
      results.push(
        report.phase === 'failed' || report.phase === 'degraded'
          ? failed(
              check,
              found.join('; '),
              `hpcserve logs ${name}; then: hpcserve deploy ${report.spec_file}`,
            )
          : report.phase === 'replacing'
            ? warning(check, found.join('; '), `hpcserve logs ${name}, where it goes on for long`)
            : passed(check, found.join('; ')),
      );
      for (const { node, notices } of report.launches.flatMap(({ nodes }) => nodes))
        for (const notice of notices)
          results.push(
            warning(`${check} on ${node}`, sentenceOf(notice), notice.try[0] ?? `hpcserve logs ${name}`),
          );
      const paths = new Set(
        state.launches.flatMap((launch) => launch.planned.units.map((unit) => unit.model_path)),
      );
      for (const path of paths)
        if (!existsSync(path))
          results.push(
            failed(`model of ${name}`, `${path} is gone`, 'put it back, or change `source` and deploy again'),
          );
    } catch (error) {
      results.push(failedBy(`deployment ${name}`, error, 'look at the file named'));
    }
  }
  return results;
}

export function failedBy(check: string, error: unknown, mend: string): CheckResult {
  if (!(error instanceof HpcserveError)) throw error;
  return failed(check, [error.message, ...error.because].join(': '), error.try[0] ?? mend);
}
