/** Whether what runs is what was planned, device by device, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import type { GivenDevice } from '../../spec/agent-state.ts';
import { expectations } from './predictions.ts';
import { printable } from './style.ts';
import { formatTable } from './table.ts';
import { wrap } from './wrap.ts';

interface ConfirmationLine {
  text: string;
  /** It tells of a difference. */
  alarming: boolean;
}

/**
 * One line for each replica that runs, where the whole is wanted; then one for each difference, else one that there is
 * none. Nothing where no agent has said yet what it runs on.
 */
export function confirmationLines(
  { launches }: DeploymentReport,
  width: number,
  whole: boolean,
): ConfirmationLine[] {
  const units = launches.filter(({ superseded }) => !superseded).flatMap((launch) => launch.units);
  const known = units.filter(({ actual }) => actual !== undefined);
  if (known.length === 0) return [];
  const rows = known.map((unit) => [
    unit.unit,
    describePlanned(unit),
    describeNodes(unit),
    printable(describeGivenDevices(unit.actual!.devices)),
    unit.matches ? 'as planned' : 'DIFFERS',
  ]);
  const titles = ['REPLICA', 'PLANNED', 'NODE', 'RUNS ON', ''];
  const table = formatTable(
    titles.map((title) => ({ title })),
    rows,
  );
  const tight = table.some((line) => [...line].length + 2 > width);
  const list = tight
    ? rows.flatMap(([unit, planned, node, devices, verdict]) =>
        wrap(`${unit} on ${node}, ${devices}: ${verdict}, ${planned}`, width, 2),
      )
    : table.map((line) => `  ${line}`);
  const differing = known.filter(({ matches }) => !matches);
  const verdict =
    differing.length > 0
      ? differing.flatMap((unit) =>
          wrap(`! ${unit.unit} is not as planned: ${(unit.differences ?? []).join('; ')}`, width, 2),
        )
      : [`  as planned: ${known.length} of ${units.length} replicas, device by device`];
  return [
    ...(whole ? ['', ...list, ...units.flatMap((unit) => stageLines(unit, width))] : []).map((text) => ({
      text,
      alarming: false,
    })),
    ...(whole || differing.length > 0 ? verdict : []).map((text) => ({
      text,
      alarming: differing.length > 0,
    })),
  ];
}

/** `stages of cut-0: operators 0-8 on cpu 0 of n0, 9-17 on cpu 1 of n0`; nothing where it is not cut. */
function stageLines({ unit, stages = [] }: UnitReport, width: number): string[] {
  if (stages.length === 0) return [];
  const parts = [...stages]
    .sort((a, b) => a.stage - b.stage)
    .map(({ begin, end, device, node, runs }) => {
      const where = `operators ${begin}-${end - 1} on ${device ?? 'its device'} of ${printable(node)}`;
      return runs ? where : `${where} (not running)`;
    });
  return wrap(`stages of ${unit}: ${parts.join(', ')}`, width, 2);
}

/** What the plan expects of the replicas; speeds of devices that a CPU stands in for are those of the devices. */
export function expectationLines({ models }: DeploymentReport, width: number): string[] {
  const groups = models.flatMap(({ name, groups: own }) => own.map((group) => ({ ...group, name })));
  const lines = expectations(groups, width);
  const title = wrap('the plan expects (mean over requests, by simulation):', width, 2);
  return lines.length === 0 ? [] : ['', ...title, ...lines];
}

/** `2× A100 (emulated), tensor 2, on a100`. */
function describePlanned({ planned }: UnitReport): string {
  const { device_count, device_model, emulated, tensor, pipeline } = planned;
  return [
    `${device_count}× ${device_model}${emulated ? ' (emulated)' : ''}`,
    ...(tensor > 1 ? [`tensor ${tensor}`] : []),
    ...(pipeline > 1 ? [`pipeline ${pipeline}`] : []),
    plannedPlace(planned),
  ].join(', ');
}

function plannedPlace({ nodes, jobs, lenders, node_kind }: UnitReport['planned']): string {
  if (nodes === undefined) return `on ${node_kind}`;
  if (!jobs) return `on each of ${nodes} nodes of ${node_kind}`;
  const each = `in each of ${nodes} jobs`;
  return lenders
    ? `${each}, the first on ${node_kind}, the others on nodes of tier ${lenders}`
    : `${each} on ${node_kind}`;
}

/** The node; with its kinds where the planned one is not among them. */
function describeNodes({ planned, actual }: UnitReport): string {
  const { node, node_kinds } = actual!;
  const known = node_kinds === undefined || node_kinds.includes(planned.node_kind);
  return printable(known ? node : `${node} (${node_kinds.join(', ') || 'of no known kind'})`);
}

/** `gpu 0: GH200 (emulated on cores 0-1)`, `gpu 1: A100-40GB GPU-5a3c…`. */
function describeGivenDevices(devices: readonly GivenDevice[]): string {
  if (devices.length === 0) return 'no device';
  return devices
    .map(({ kind, index, model, emulated, cores, uuid }) => {
      const on =
        cores && cores.length > 0 ? `${cores.length === 1 ? 'core' : 'cores'} ${ranges(cores)}` : undefined;
      const detail = emulated
        ? ` (emulated${on ? ` on ${on}` : ''})`
        : uuid
          ? ` ${uuid}`
          : on
            ? ` (${on})`
            : '';
      return `${kind} ${index}: ${model}${detail}`;
    })
    .join(', ');
}

/** `0-3,8`. */
function ranges(numbers: readonly number[]): string {
  const parts: [number, number][] = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(',');
}
