import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { planNow } from '../../control/plan/plan-now.ts';
import { launchIds, requireFeasible } from '../../control/plan/planning.ts';
import { mergePlan } from '../../control/reconcile/decide.ts';
import { renderLaunches } from '../../control/reconcile/render-launches.ts';
import type { CliContext } from '../context.ts';
import { describeEvent } from '../progress/describe-event.ts';
import { openSession, readSpec } from '../site-session.ts';
import { addSlurmOptions } from '../slurm-options.ts';

export function registerRender(command: Command, context: CliContext): void {
  addSlurmOptions(
    command
      .option('--output-script <folder>', 'write each script and its launch file there instead')
      .option('--offline', 'do not ask Slurm; plan from the site config alone'),
  )
    .addHelpText(
      'after',
      `
The scripts are those the next deploy submits, byte for byte; jobs that run unchanged show theirs, and the tasks of a
job array are one script. Where Slurm
cannot be reached, and with --offline, they come from the site config alone, and a note on stderr says so.

Examples:
  $ hpcserve render model.yaml
  $ hpcserve render model.yaml --output-script scripts/
  $ hpcserve render model.yaml --site perlmutter --partition debug | less`,
    )
    .action(async (file: string, options: { outputScript?: string; offline?: true }) => {
      const read = readSpec(context, file);
      const operations = openSession(context, {
        command: 'hpcserve render',
        spec: read,
        emit: (event) => (event.kind === 'warning' ? context.note(describeEvent(event)) : undefined),
      });
      const { store } = operations;
      const { plan, fingerprint } = await planNow(operations, read.spec, read.path, {
        ask: options.offline ? 'never' : 'may',
      });
      requireFeasible(plan);
      const state = store.load(plan.deployment);
      const ids = launchIds(store, plan.deployment, (state?.generation ?? 0) + 1);
      const merged = mergePlan(state?.launches ?? [], plan.launches, fingerprint, ids).filter(
        (launch) => !launch.superseded,
      );
      const scripts = await renderLaunches(operations, plan.deployment, merged, options.offline === true);
      const folder = options.outputScript;
      if (folder !== undefined) {
        mkdirSync(folder, { recursive: true });
        const written = new Set<string>();
        for (const { launch_id, script, launch, array } of scripts) {
          const path = join(folder, `${array?.array_id ?? launch_id}.sh`);
          writeFileSync(path, script, { mode: 0o755 });
          writeFileSync(join(folder, `${launch_id}.json`), `${JSON.stringify(launch, null, 2)}\n`);
          if (context.json) context.out(JSON.stringify({ launch_id, path }));
          else if (!written.has(path)) context.out(path);
          written.add(path);
        }
        return;
      }
      if (context.json) context.out(JSON.stringify({ scripts }));
      // The tasks of an array have one script.
      else for (const script of new Set(scripts.map((each) => each.script))) context.write(script);
    });
}
