import { fileURLToPath } from 'node:url';
import { cruise, type ICruiseResult } from 'dependency-cruiser';
import { beforeAll, describe, expect, it } from 'vitest';
import { controlFloors, dependencyRules, pageRoom, productRooms } from '../../.ci/dependency-rules.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

describe('direction of dependencies', () => {
  let result: ICruiseResult;

  beforeAll(async () => {
    const rooms = [...productRooms, pageRoom, 'test', 'bench', '.ci'];
    const answer = await cruise(rooms, {
      baseDir: root,
      ruleSet: { forbidden: dependencyRules },
      validate: true,
      doNotFollow: { path: 'node_modules' },
      tsPreCompilationDeps: true,
      tsConfig: { fileName: `${root}/tsconfig.json` },
      enhancedResolveOptions: { extensions: ['.ts', '.tsx', '.js', '.mjs', '.json', '.d.ts'] },
    });
    result = answer.output as ICruiseResult;
  });

  it('was looked at in every room', () => {
    for (const room of [...productRooms, pageRoom]) {
      const seen = result.modules.filter((module) => module.source.startsWith(`${room}/`));
      expect(seen.length, `modules seen in ${room}/`).toBeGreaterThan(0);
    }
    const edges = result.modules.flatMap((module) => module.dependencies);
    expect(edges.filter((edge) => edge.resolved.startsWith('spec/')).length).toBeGreaterThan(10);
    const lost = edges.filter((edge) => edge.couldNotResolve && edge.module.startsWith('.'));
    expect(lost.map((edge) => edge.module)).toEqual([]);
  });

  it('has a floor for every folder of control/', () => {
    const folders = new Set(
      result.modules
        .filter(({ source }) => source.startsWith('control/'))
        .map(({ source }) => (source.split('/').length > 2 ? source.split('/')[1]! : '')),
    );
    expect([...folders].sort()).toEqual([...controlFloors.flat()].sort());
  });

  it('goes from processes to libraries to host to spec', () => {
    const violations = result.summary.violations.map(
      (violation) => `${violation.rule.name}: ${violation.from} → ${violation.to}`,
    );
    expect(violations).toEqual([]);
  });
});
