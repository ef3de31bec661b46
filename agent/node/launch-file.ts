import { readFileSync } from 'node:fs';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LaunchSpec, launchSchema } from '../../spec/launch.ts';

/** @throws HpcserveError E_AGENT_LAUNCH */
export function readLaunchFile(path: string): LaunchSpec {
  const refuse = (because: string | string[], cause?: unknown): HpcserveError =>
    new HpcserveError('E_AGENT_LAUNCH', { what: `the launch file ${path} cannot be used`, because, cause });
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    throw refuse((error as Error).message, error);
  }
  const parsed = launchSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw refuse(parsed.error.issues.slice(0, 8).map((issue) => `${issue.path.join('.')}: ${issue.message}`));
}
