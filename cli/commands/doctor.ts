import type { Command } from 'commander';
import type { Operations } from '../../control/runner/operations.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import type { CliContext } from '../context.ts';
import type { CheckResult, CheckStatus } from '../doctor/check.ts';
import { checkEngines } from '../doctor/engine-checks.ts';
import { checkGpus } from '../doctor/gpu-checks.ts';
import {
  checkAccelerators,
  checkAddons,
  checkCpuKernels,
  checkEngineNetworks,
  checkFabric,
  checkHybridGemm,
  checkNativeLibrary,
  checkNode,
  checkPrograms,
  checkScratch,
  checkSocketPaths,
  checkStateFolder,
} from '../doctor/machine-checks.ts';
import {
  checkDeployments,
  checkGateway,
  checkMesh,
  checkSlurm,
  checkWayToGateways,
  failedBy,
} from '../doctor/site-checks.ts';
import { printable, type StyleName, style } from '../format/style.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { openSession } from '../site-session.ts';

const statusStyle: Record<CheckStatus, StyleName> = {
  PASSED: 'green',
  WARNING: 'yellow',
  FAILED: 'red',
  SKIPPED: 'dim',
};

export function registerDoctor(command: Command, context: CliContext): void {
  command
    .addHelpText(
      'after',
      `
Each line is PASSED, WARNING, FAILED or SKIPPED, with the command that mends it. Exit code 13 when a check
failed.

Examples:
  $ hpcserve doctor
  $ hpcserve doctor --site perlmutter --json | jq '.checks[] | select(.status == "FAILED")'`,
    )
    .action(async () => {
      const results = await runChecks(context);
      const failures = results.filter((result) => result.status === 'FAILED');
      if (context.json) context.out(JSON.stringify({ passed: failures.length === 0, checks: results }));
      else for (const result of results) print(context, result);
      if (failures.length > 0)
        throw new HpcserveError('E_CHECKS_FAILED', {
          what: `${failures.length} of ${results.length} checks failed`,
          because: failures.map((failure) => failure.check),
        });
    });
}

async function runChecks(context: CliContext): Promise<CheckResult[]> {
  const results: CheckResult[] = [checkNode(), checkPrograms(), await checkAddons(), checkSocketPaths()];
  let operations: Operations;
  try {
    operations = openSession(context, { command: 'hpcserve doctor' });
  } catch (error) {
    return [...results, failedBy('site config', error, 'hpcserve init')];
  }
  const { loaded } = operations;
  results.push(
    { check: 'site config', status: 'PASSED', found: `${loaded.site.name} from ${loaded.path}` },
    checkNativeLibrary(loaded),
    ...(await checkGpus(loaded, context.environment)),
    ...checkAccelerators(loaded, context.environment),
    await checkCpuKernels(),
    checkHybridGemm(),
    ...checkEngineNetworks(loaded),
    ...(await checkFabric(loaded)),
    ...(await checkEngines(loaded, context.environment)),
    ...checkStateFolder(loaded),
    ...checkScratch(loaded, (text) => expandSitePath(text, context.environment)),
    ...(await checkSlurm(operations)),
    await checkGateway(operations),
    ...(await checkWayToGateways(operations)),
    ...(await checkMesh(operations)),
    ...(await checkDeployments(operations)),
  );
  return results;
}

function print(context: CliContext, { check, status, found, mend }: CheckResult): void {
  const colour = context.colour && context.tty.stdout;
  const width = textWidth(context);
  // The word is coloured when the line has been folded: colours have no width.
  const [first = '', ...rest] = wrap(`${status.padEnd(7)}  ${check}: ${printable(found)}`, width, 0, 9);
  context.out(style(statusStyle[status], first.slice(0, 7), colour) + first.slice(7));
  for (const line of rest) context.out(line);
  if (mend === undefined) return;
  for (const line of wrap(`try: ${printable(mend)}`, width, 9)) context.out(line);
}
