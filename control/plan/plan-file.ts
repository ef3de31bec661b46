/** Plans in files: what `plan --out` writes is what `deploy --plan` carries out, to the letter, or nothing. */
import { readFileSync, writeFileSync } from 'node:fs';
import { version } from '../../host/version.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Plan } from '../../spec/plan.ts';
import { digestOf } from '../state/digest.ts';

/** With what tells a later reader that nobody changed it. */
export function sealPlan(plan: Omit<Plan, 'made_by' | 'content_digest'>): Plan {
  const signed = { ...plan, made_by: version };
  return { ...signed, content_digest: contentDigest(signed) };
}

/** Over what a file holds of it: numbers that JSON does not know are null there. */
function contentDigest(plan: object): string {
  return digestOf(JSON.parse(JSON.stringify(plan)));
}

/** @throws HpcserveError E_PLAN_FILE where it cannot be written. */
export function writePlanFile(path: string, plan: Plan): void {
  try {
    writeFileSync(path, `${JSON.stringify(plan, null, 2)}\n`, { mode: 0o600 });
  } catch (error) {
    throw new HpcserveError('E_PLAN_FILE', {
      what: `the plan cannot be written to ${path}`,
      because: (error as Error).message,
      try: 'name a file in a folder you may write to',
      cause: error,
    });
  }
}

/**
 * A plan as this version wrote it, also with the estimates that `plan --json` adds. A plan is decided as a whole and
 * verified before it is shown: one that was edited is neither.
 * @throws HpcserveError E_PLAN_FILE
 */
export function readPlanFile(path: string): Plan {
  const broken = (because: string): HpcserveError =>
    new HpcserveError('E_PLAN_FILE', { what: `${path} is no plan to carry out`, because });
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    throw broken((error as Error).message);
  }
  if (typeof json !== 'object' || json === null || Array.isArray(json)) throw broken('it is no JSON object');
  const { content_digest, estimates: _, ...plan } = json as Plan & { estimates?: unknown };
  if (plan.format !== 1) throw broken('it has no "format": 1');
  if (plan.made_by !== version)
    throw broken(
      `it was written by hpcserve ${JSON.stringify(plan.made_by ?? '(unknown)')}; this is ${version}`,
    );
  if (contentDigest(plan) !== content_digest)
    throw broken('it was changed after it was written: say in model.yaml what is to be otherwise');
  return { ...plan, content_digest };
}
