/**
 * What is installed of wrapped engines, on a site whose jobs run on this machine. The node agent looks, as it does
 * before it starts one: on a cluster it does so in the job, whose modules and containers this host does not have.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { type LoadedSite, programOnPath } from '../../control/state/site-files.ts';
import { compiledFile } from '../../host/programs.ts';
import { type EngineReport, engineReportSchema } from '../../spec/engine-report.ts';
import type { SiteEngine } from '../../spec/site-runtime.ts';
import { type CheckResult, passed, skipped, warning } from './check.ts';

/** Engines whose options and parsers differ from version to version, and what shows that they may be here. */
const programs = { vllm: 'vllm', sglang: 'sglang' } as const satisfies Partial<Record<SiteEngine, string>>;
const timeout_ms = 90_000;

export async function checkEngines(
  { site }: LoadedSite,
  environment: Readonly<Record<string, string | undefined>>,
): Promise<CheckResult[]> {
  const checks = (Object.keys(programs) as (keyof typeof programs)[]).map((engine) => {
    const offer = site.runtime.engines?.[engine];
    if (site.kind !== 'local') return offer ? [skipped(`engine ${engine}`, 'looked at in the job')] : [];
    const isThere = site.runtime.engines === undefined && programOnPath(programs[engine], environment);
    if (!offer && !isThere) return [];
    return checkEngine(engine, typeof offer === 'object' ? offer.prefix : [], environment);
  });
  return (await Promise.all(checks)).flat();
}

async function checkEngine(
  engine: keyof typeof programs,
  prefix: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
): Promise<CheckResult[]> {
  const agent = compiledFile('agent/main.js');
  const check = `engine ${engine}`;
  try {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [agent, '--probe', engine, '--', ...prefix],
      { env: { ...environment }, timeout: timeout_ms },
    );
    return [judge(check, engineReportSchema.parse(JSON.parse(stdout)))];
  } catch (error) {
    const { message, stderr } = error as Error & { stderr?: string };
    const why = stderr?.trim().split('\n').at(-1) || message.split('\n')[0]!;
    return [
      warning(
        check,
        `it did not say what it can do: ${why}`,
        'start hpcserve where python3 finds the engine, or say in runtime.engines of the site config how it is started',
      ),
    ];
  }
}

function judge(check: string, report: EngineReport): CheckResult {
  const { version, unix_socket, options, tool_parsers, reasoning_parsers } = report;
  const found = [
    `version ${version}`,
    unix_socket ? 'listens on a unix socket' : 'listens on a port (it has no --uds)',
    options === undefined ? 'which options it has could not be read' : `${options} options`,
    `${tool_parsers.length} parsers of tool calls, ${reasoning_parsers.length} of reasoning`,
  ].join('; ');
  const { versions_run, versions_read } = report;
  const tried =
    versions_run.length > 0
      ? `run with ${versions_run.join(', ')}`
      : `read in ${versions_read[0] ?? 'none'} to ${versions_read.at(-1) ?? 'none'}`;
  if (options === undefined)
    return warning(
      check,
      found,
      `options it lacks are found out when it starts; hpcserve was ${tried}: another version may help`,
    );
  return passed(check, `${found} (hpcserve was ${tried})`);
}
