import { expect, it } from 'vitest';
import { kernelLines } from '../../../cli/format/kernels.ts';
import type { DeploymentReport } from '../../../control/status.ts';

type Unit = { unit: string; layouts?: Record<string, number> };
const report = (...units: Unit[]): DeploymentReport =>
  ({ launches: [{ superseded: false, units }] }) as unknown as DeploymentReport;

it('says whose kernels multiply by how much of the weights, the most first', () => {
  const layouts = { CPU_Mapped: 2 ** 20, PACKED_AMX_BF16: 2 ** 31, CPU_REPACK: 2 ** 30 };
  expect(
    kernelLines(report({ unit: 'a-0', layouts }, { unit: 'a-1', layouts }, { unit: 'b-0' }), 200),
  ).toEqual([
    '',
    '  kernels that multiply:',
    '    a-0, a-1: ours (AMX_BF16) by 2.00 GiB, ggml’s (CPU_REPACK) by 1.00 GiB, ggml’s (plain layout) by 1.00 MiB',
  ]);
});

it('says nothing of engines that do not say', () => {
  expect(kernelLines(report({ unit: 'c-0' }), 80)).toEqual([]);
});
