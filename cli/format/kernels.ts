/** Whose products multiply by the weights of native models that serve, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import { alikeLines } from './alike.ts';
import { formatBytes } from './quantities.ts';

/** One line for replicas whose weights lie alike; nothing where no device worker has said how. */
export function kernelLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'kernels that multiply:', describeKernels);
}

function describeKernels({ layouts = {} }: UnitReport): string | undefined {
  const largest = Object.entries(layouts).sort(([, one], [, other]) => other - one);
  const words = largest.map(([layout, bytes]) => `${kernelsOf(layout)} by ${formatBytes(bytes)}`);
  return words.length === 0 ? undefined : words.join(', ');
}

/** @param layout ggml's name of a buffer type */
function kernelsOf(layout: string): string {
  const [, ours] = /^PACKED_(.+)$/.exec(layout) ?? [];
  if (ours !== undefined) return `ours (${ours})`;
  return /^CPU(_Mapped)?$/.test(layout) ? 'ggml’s (plain layout)' : `ggml’s (${layout})`;
}
