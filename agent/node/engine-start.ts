/** What starting a wrapped engine needs, on its first node and on others. */
import { readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { CommandLine } from '../adapters/adapter.ts';
import { adapterOf } from '../adapters/index.ts';
import type { UnitGroup } from './assign-devices.ts';
import { environmentFor } from './device-visibility.ts';
import { environmentDefaults } from './engine-defaults.ts';
import type { ProcessContext } from './serving-process.ts';

/**
 * What all engines have, then of the agent, its cores and devices, the model's files and the model, each stronger than
 * before.
 */
export function engineEnvironment(
  unit: UnitSpec,
  context: Pick<ProcessContext, 'group' | 'environment' | 'place' | 'engine_interfaces' | 'physical_cores'>,
): NodeJS.ProcessEnv {
  const { group, environment } = context;
  return environmentFor(group.devices, {
    ...environmentDefaults(unit, context),
    ...environment,
    ...threadEnvironment(unit, group, context.physical_cores),
    ...readEnvironmentFiles(unit),
    ...unit.model.environment,
  });
}

/**
 * Names of variables that a container has to be told to hand on: those of devices, and what the model and its files
 * set.
 */
export function variablesOf(unit: UnitSpec, { group }: Pick<ProcessContext, 'group'>): string[] {
  const own = { ...readEnvironmentFiles(unit), ...unit.model.environment };
  return [...new Set([...Object.keys(environmentFor(group.devices, {})), ...Object.keys(own)])];
}

/** Libraries of GPU engines are left alone: what little they compute on CPUs, they know best how to. */
function threadEnvironment(
  unit: UnitSpec,
  { cores, threads }: UnitGroup,
  physicalCores: ProcessContext['physical_cores'],
): Record<string, string> {
  if (unit.engine === 'native' || unit.device_kind !== 'cpu' || cores === undefined) return {};
  const physical = physicalCores(cores);
  const adapter = adapterOf(unit.engine);
  if (adapter.threadEnvironment) return adapter.threadEnvironment(unit, physical);
  return { OMP_NUM_THREADS: String(Math.min(threads, physical.length)) };
}

/** Writes and links what its command line refers to. */
export function prepareFiles(line: CommandLine): void {
  for (const { path, content } of line.files) writeFileSync(path, content, { mode: 0o600, flag: 'wx' });
  for (const { path, target } of line.links) {
    makeFolders(dirname(path));
    symlinkSync(target, path);
  }
}

/**
 * NAME=value lines of the model's environment files; `#` starts a comment line.
 *
 * @throws HpcserveError E_AGENT_ENGINE_OPTION where a file is unreadable, open to others, or not of that form
 */
function readEnvironmentFiles(unit: UnitSpec): Record<string, string> {
  const result: Record<string, string> = {};
  for (const path of unit.model.environment_files) {
    const refuse = (because: string): HpcserveError =>
      new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `the environment file ${path} of ${unit.model.name} cannot be used`,
        because,
        try: 'make it readable by you alone (chmod 600), with one NAME=value a line',
      });
    let text: string;
    try {
      if ((statSync(path).mode & 0o077) !== 0) throw refuse('others may read or write it');
      text = readFileSync(path, 'utf8');
    } catch (error) {
      throw error instanceof HpcserveError ? error : refuse((error as Error).message);
    }
    text.split(/\r?\n/).forEach((content, index) => {
      if (/^\s*(#|$)/.test(content)) return;
      const match = /^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(content);
      if (!match) throw refuse(`line ${index + 1} is not NAME=value`);
      result[match[1]!] = match[2]!;
    });
  }
  return result;
}

/**
 * A port of this address that is free now, of the range if there is one. Another process may take it first: see
 * `connectionTo`.
 */
export async function freePort(
  host: string,
  range: readonly [first: number, last: number] = [0, 0],
): Promise<number> {
  for (let port = range[0]; ; port++) {
    try {
      return await bound(host, port);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || port >= range[1]) throw error;
    }
  }
}

function bound(host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(port, host, () => {
      const address = server.address();
      server.close(() => {
        if (address && typeof address === 'object') resolve(address.port);
        else reject(new Error(`no port of ${host} is free`));
      });
    });
  });
}
