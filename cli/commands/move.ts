import { type Command, InvalidArgumentError } from 'commander';
import { type MoveOrder, move, planMove } from '../../control/move.ts';
import type { PipelineChange } from '../../control/pipelines/change-pipeline.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';
import { openSession } from '../site-session.ts';

interface MoveOptions {
  stages: number;
  model?: string;
  dryRun?: true;
}

export function registerMove(command: Command, context: CliContext): void {
  command
    .requiredOption('--stages <n>', 'stages that each pipeline of the model is to have', stagesCount)
    .option('--model <name>', 'which model, where the deployment has several')
    .option('-n, --dry-run', 'say what would lie where, and change nothing')
    .addHelpText(
      'after',
      `
A pipeline is changed while it answers: what is missing is loaded, keys and values are copied, and it pauses for the rest.
Where anything fails it goes on as it was. Its job must have a device for each stage, and memory for the larger ones:
parallel.pipeline of model.yaml says for which numbers of stages that is planned (stages_min, stages_max). Where these are
given, the keeper changes them by itself as requests come, and may change again what was asked for here.

Examples:
  $ hpcserve move my-deployment --stages 4
  $ hpcserve move my-deployment --model llama-70b --stages 2 --dry-run`,
    )
    .action((deployment: string, options: MoveOptions) => moveStages(context, deployment, options));
}

function stagesCount(value: string): number {
  const count = Number(value);
  if (!/^\d+$/.test(value) || count < 1 || count > 64)
    throw new InvalidArgumentError('a number of stages from 1 to 64.');
  return count;
}

async function moveStages(
  context: CliContext,
  deployment: string,
  { stages, model, dryRun }: MoveOptions,
): Promise<void> {
  const order: MoveOrder = { deployment, stages };
  if (model !== undefined) order.model = model;
  const operations = openSession(context, { command: 'hpcserve move' });
  const changes = await planMove(operations, order);
  if (changes.length === 0 && !context.json)
    return context.note(`${order.deployment} has ${stagesText(order.stages)} already`);
  if (dryRun) {
    if (context.json) return context.out(JSON.stringify({ changes: changes.map(described) }));
    for (const change of changes) for (const line of lines(change)) context.out(line);
    return;
  }
  const done: unknown[] = [];
  for (const change of changes) if (!context.json) for (const line of lines(change)) context.note(line);
  for await (const { pipeline, outcome } of move(operations, changes)) {
    done.push({ unit: pipeline.unit.unit, ...outcome });
    if (context.json) continue;
    const { pause_ms, bytes_moved, bytes_by_way = {}, duration_ms } = outcome;
    const ways = Object.entries(bytes_by_way).map(([way, bytes]) => `${formatBytes(bytes)} by ${way}`);
    const how = ways.length > 0 ? ` (${ways.join(', ')})` : '';
    context.out(
      `${pipeline.unit.unit} has ${stagesText(order.stages)}: ${(duration_ms / 1000).toFixed(1)} s, ${formatBytes(bytes_moved)} moved${how}, no token for ${pause_ms.toFixed(0)} ms`,
    );
  }
  if (context.json) context.out(JSON.stringify({ changed: done }));
}

function stagesText(count: number): string {
  return `${count} ${count === 1 ? 'stage' : 'stages'}`;
}

function described({ pipeline, plan, stages, starts }: PipelineChange): unknown {
  return { unit: pipeline.unit.unit, from: pipeline.stages.length, because: plan.reason, starts, stages };
}

function lines({ pipeline, plan, stages, starts }: PipelineChange): string[] {
  const where = stages.map(
    ({ device, node, first_block, blocks }) =>
      `layers ${first_block}–${first_block + blocks - 1} on ${device} of ${node}`,
  );
  return [
    `${pipeline.unit.unit}: ${pipeline.stages.length} → ${stagesText(stages.length)}, ${where.join(', ')}`,
    `  ${plan.reason}`,
    ...starts.map((start) => `  ${start}`),
  ];
}
