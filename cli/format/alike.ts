import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import { wrap } from './wrap.ts';

/** A title, and a line for all replicas of which the same is to be said; nothing where nothing is of any. */
export function alikeLines(
  { launches }: DeploymentReport,
  width: number,
  title: string,
  describe: (unit: UnitReport) => string | undefined,
): string[] {
  const units = launches.filter(({ superseded }) => !superseded).flatMap((launch) => launch.units);
  const alike = new Map<string, string[]>();
  for (const unit of units) {
    const words = describe(unit);
    if (words !== undefined) alike.set(words, [...(alike.get(words) ?? []), unit.unit]);
  }
  if (alike.size === 0) return [];
  const lines = [...alike].flatMap(([words, names]) => wrap(`${names.join(', ')}: ${words}`, width, 4));
  return ['', ...wrap(title, width, 2), ...lines];
}
