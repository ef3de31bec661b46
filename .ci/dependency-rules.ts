/**
 * The direction of dependencies: processes → libraries → spec. `test/house/dependencies.test.ts` runs
 * dependency-cruiser with these rules and checks that it saw the modules.
 */
import type { IForbiddenRuleType } from 'dependency-cruiser';

export const processes = ['cli', 'control', 'gateway', 'agent'] as const;
export const libraries = ['solver', 'mesh', 'slurm', 'ledger', 'native'] as const;

const all = (rooms: readonly string[]): string => `^(${rooms.join('|')})/`;

export const dependencyRules: IForbiddenRuleType[] = [
  // `control` runs inside a CLI command, so the CLI may call it; nothing else crosses between processes.
  ...processes.map((room) => ({
    name: `${room}-imports-no-other-process`,
    severity: 'error' as const,
    from: { path: `^${room}/` },
    to: {
      path: all(processes.filter((other) => other !== room && !(room === 'cli' && other === 'control'))),
    },
  })),
  ...libraries.map((room) => ({
    name: `${room}-imports-only-spec`,
    severity: 'error' as const,
    from: { path: `^${room}/` },
    to: { path: all([...processes, ...libraries.filter((other) => other !== room)]) },
  })),
  {
    name: 'spec-imports-nothing-of-the-house',
    severity: 'error',
    from: { path: '^spec/' },
    to: { path: all([...processes, ...libraries]) },
  },
  {
    name: 'solver-is-pure',
    comment: 'no I/O, no clock, no randomness but a seed',
    severity: 'error',
    from: { path: '^solver/' },
    to: { dependencyTypes: ['core'] },
  },
  {
    name: 'product-imports-no-tests',
    severity: 'error',
    from: { path: all([...processes, ...libraries, 'spec']) },
    to: { path: '^(test|bench|\\.ci)/' },
  },
  { name: 'no-cycles', severity: 'error', from: { pathNot: '^spec/errors/' }, to: { circular: true } },
  {
    name: 'product-uses-no-development-packages',
    severity: 'error',
    from: { path: all([...processes, ...libraries, 'spec']) },
    to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['type-only'] },
  },
];
